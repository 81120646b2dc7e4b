// Greedy sampling over vocabulary shards: each rank's best entry, then the best of those.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/vocab_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/sample.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kAtOnce = 8;  // of a thread's loads
constexpr int32_t kNoToken = 0x7fffffff;

__device__ bool is_banned(const SampleRow& row, int32_t id) {
  for (int i = 0; i < row.num_banned; ++i) {
    if (row.banned[i] == id) return true;
  }
  return false;
}

// Grid: rows × blocks of a team. best[i] = (value, id) of the shard's ids [first, first + count).
__global__ void __launch_bounds__(kThreads) argmax_shard(RowView<const float> logits,
                                                         RowView<const uint8_t> rows,
                                                         RowView<float> best,
                                                         int32_t first,
                                                         int32_t count) {
  wait_for_previous();
  const int blocks = team_blocks();
  const int64_t i = blockIdx.x / blocks;
  const auto& row = *reinterpret_cast<const SampleRow*>(rows.row(i));
  const float* x = logits.row(i);
  const int share = (count + blocks - 1) / blocks;
  const int end = min(count, (block_of_team() + 1) * share);
  const int begin = block_of_team() * share + static_cast<int>(threadIdx.x);
  const bool bans = row.num_banned > 0;
  float value = -INFINITY;
  int32_t id = kNoToken;
  for (int v = begin; v < end; v += kAtOnce * kThreads) {
    float some[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) some[j] = v + j * kThreads < end ? x[v + j * kThreads] : -INFINITY;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const float one = clean_logit(some[j]);
      if (one <= value || (bans && is_banned(row, first + v + j * kThreads))) continue;
      value = one;
      id = first + v + j * kThreads;
    }
  }
  RowTeam team;
  const uint64_t mine = team.reduce(id == kNoToken ? 0 : vocab_key(value, id), MaxOp());
  uint64_t first_allowed = 0;
  if (mine == 0) {
    // Where nothing is above −inf, the smallest id that the row allows: all keys are ties then.
    for (int v = begin; v < end && first_allowed == 0; v += kThreads) {
      if (!bans || !is_banned(row, first + v)) first_allowed = vocab_key(-INFINITY, first + v);
    }
    first_allowed = team.reduce(first_allowed, MaxOp());
  }
  meet_team();  // nobody reads another's shared memory any more
  if (block_of_team() != 0 || threadIdx.x != 0) return;
  value = -INFINITY;
  id = kNoToken;
  if (row.slot < 0) {
    value = 0;
    id = 0;
  } else if (mine != 0) {
    value = value_of_key(mine);
    id = id_of_key(mine);
  } else if (first_allowed != 0) {
    id = id_of_key(first_allowed);
  }
  best.row(i)[0] = value;
  best.row(i)[1] = __int_as_float(id);
}

// A thread a row.
__global__ void argmax_merge(const float* best,
                             int64_t shard_stride,
                             int64_t row_stride,
                             int shards,
                             RowView<int32_t> records,
                             int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  float value = -INFINITY;
  int32_t id = kNoToken;
  for (int s = 0; s < shards; ++s) {
    const float* entry = best + s * shard_stride + i * row_stride;
    const int32_t other = *reinterpret_cast<const int32_t*>(entry + 1);
    if (entry[0] > value || (entry[0] == value && other < id)) {
      value = entry[0];
      id = other;
    }
  }
  int32_t* record = records.row(i);
  for (int w = 0; w < static_cast<int>(kSampleRecordWords); ++w) record[w] = 0;
  record[0] = id == kNoToken ? 0 : id;
}

}  // namespace

void argmax_shard_cuda(OpState& state, device::Stream& stream, const ArgmaxShardParams& params) {
  const int64_t n = params.logits.dim(0);
  CHECK_EQ(params.logits.dtype, DType::kF32);
  CHECK_EQ(params.best.dtype, DType::kF32);
  CHECK_EQ(params.rows.dim(1), static_cast<int64_t>(sizeof(SampleRow)));
  CHECK(params.rows.dim(0) == n && params.best.dim(0) == n && params.best.dim(1) == 2,
        "{} rows, bests {}",
        params.rows.dim(0),
        params.best.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  if (n == 0 || !cuda.enter()) return;
  const int64_t left = params.vocab_size - params.vocab_begin;
  const int64_t count = left < 0 ? 0 : left < params.logits.dim(1) ? left : params.logits.dim(1);
  const int blocks = team_blocks_for(n, as_cuda_state(state).options().row_teams);
  const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(n * blocks)),
                                .threads = kThreads,
                                .stream = cuda.handle(),
                                .cluster_blocks = blocks > 1 ? blocks : 0};
  cuda.check(launch_overlapped(argmax_shard,
                               launch,
                               rows_as<const float>(params.logits),
                               rows_as<const uint8_t>(params.rows),
                               rows_as<float>(params.best),
                               static_cast<int32_t>(params.vocab_begin),
                               static_cast<int32_t>(count)),
             "argmax_shard");
}

void argmax_merge_cuda(OpState&, device::Stream& stream, const ArgmaxMergeParams& params) {
  const int64_t n = params.best.dim(1);
  CHECK(params.best.rank == 3 && params.best.dim(2) == 2 && params.best.stride(2) == 1,
        "best {}",
        params.best.to_string());
  CHECK(params.records.dim(0) == n && params.records.dim(1) == kSampleRecordWords,
        "records {}",
        params.records.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  if (n == 0 || !cuda.enter()) return;
  constexpr int kMergeThreads = 64;
  argmax_merge<<<static_cast<unsigned>(ceil_div(n, kMergeThreads)), kMergeThreads, 0, cuda.handle()>>>(
      static_cast<const float*>(params.best.data),
      params.best.stride(0),
      params.best.stride(1),
      static_cast<int>(params.best.dim(0)),
      rows_as<int32_t>(params.records),
      static_cast<int>(n));
  cuda.check(cudaGetLastError(), "argmax_merge");
}

}  // namespace llm_dist::kernels
