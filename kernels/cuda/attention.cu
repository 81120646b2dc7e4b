// Causal paged attention where tensor cores do not serve (attention_mma.cu): float, unusual head sizes and
// blocks, and steps of decodes alone where kernels for every device are wanted. Prompts and decodes alike, a
// block works on one token, one kv head (its whole group of query heads, so that K and V are read once for
// them) and one share of the context. Groups of lanes of a warp each take a key at a time with 16-byte loads
// and keep an online softmax of their own (Dao et al. 2022); they are merged at the end, and shares of the
// context by a second, small kernel (Dao et al. 2023, "Flash-Decoding").
#include <algorithm>

#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace llm_dist::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kMaxSplits = 64;
constexpr int kMinBlocks = 528;  // four a multiprocessor of an H100 or H200
static_assert(kMaxHeadDim == kWarpSize * kVecWidth && kHeadDimStep == kVecWidth);

struct AttentionArgs {
  const int32_t* query_starts;
  const int32_t* context_lens;
  const int32_t* block_tables;
  int64_t table_stride;
  int num_sequences;
  int num_heads;
  int group;       // query heads of a kv head
  int num_chunks;  // of kGroup query heads within a group
  int head_dim;
  int block_size;
  int64_t block_stride;  // of the caches, in elements
  int64_t head_stride;
  float scale;  // times log2(e)
  int num_splits;
  float* partial;  // [num_tokens, num_heads, num_splits, head_dim + 2]
};

// The sequence that owns `token`, by bisection of query_starts; its visible context, 0 for padding.
struct TokenPlace {
  int sequence;
  int visible;
};
__device__ TokenPlace place_of(const AttentionArgs& args, int token) {
  int low = 0;
  int high = args.num_sequences;  // the last s with query_starts[s] <= token lies in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (args.query_starts[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int end = args.query_starts[low + 1];
  if (token < args.query_starts[low] || token >= end) return {low, 0};
  return {low, args.context_lens[low] - (end - token) + 1};
}

// One online softmax: maximum (base-2 exponents), sum, and weighted sum of kVecWidth columns of V, of each of
// kGroup query heads.
template <int kGroup>
struct Accumulator {
  float max[kGroup];
  float sum[kGroup];
  float acc[kGroup][kVecWidth];

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      max[g] = -INFINITY;
      sum[g] = 0;
#pragma unroll
      for (int v = 0; v < kVecWidth; ++v) acc[g][v] = 0;
    }
  }
};

// kKeys keys at once, so that their loads are in flight together.
template <int kKeys, int kLanes, int kGroup, typename Kv>
__device__ inline void take_keys(Accumulator<kGroup>& state,
                                 const float (&q)[kGroup][kVecWidth],
                                 const Kv* const (&k_at)[kKeys],
                                 const Kv* const (&v_at)[kKeys],
                                 const bool (&valid)[kKeys],
                                 bool lane_active) {
  float score[kKeys][kGroup];
  float values[kKeys][kVecWidth];
#pragma unroll
  for (int j = 0; j < kKeys; ++j) {
    float key[kVecWidth] = {};
#pragma unroll
    for (int v = 0; v < kVecWidth; ++v) values[j][v] = 0;
    if (lane_active && valid[j]) {
      load_vec<kVecWidth>(k_at[j], key);
      load_vec<kVecWidth>(v_at[j], values[j]);
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      float dot = 0;
#pragma unroll
      for (int v = 0; v < kVecWidth; ++v) dot += q[g][v] * key[v];
      score[j][g] = dot;
    }
  }
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
#pragma unroll
      for (int g = 0; g < kGroup; ++g) score[j][g] += __shfl_xor_sync(0xffffffffu, score[j][g], distance);
    }
  }
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    float best = state.max[g];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      if (valid[j]) best = fmaxf(best, score[j][g]);
    }
    // Nothing valid so far: the exponents below would be of infinity minus infinity.
    const float base = best == -INFINITY ? 0.0f : best;
    const float rescale = exp2f(state.max[g] - base);
    state.max[g] = best;
    state.sum[g] *= rescale;
#pragma unroll
    for (int v = 0; v < kVecWidth; ++v) state.acc[g][v] *= rescale;
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const float weight = valid[j] ? exp2f(score[j][g] - base) : 0.0f;
      state.sum[g] += weight;
#pragma unroll
      for (int v = 0; v < kVecWidth; ++v) state.acc[g][v] += weight * values[j][v];
    }
  }
}

// Merges the block's softmaxes; writes the result, or the split's partial one.
template <int kLanes, int kGroup, typename T>
__device__ inline void write_merged(const AttentionArgs& args,
                                    const Accumulator<kGroup>& state,
                                    int token,
                                    int first_head,
                                    int num_heads,
                                    RowView<T> out) {
  constexpr int kStreams = kThreads / kLanes;
  __shared__ float stream_max[kStreams][kGroup];
  __shared__ float stream_sum[kStreams][kGroup];
  extern __shared__ float stream_acc[];  // [kStreams, kGroup, kLanes * kVecWidth]
  const int stream = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  constexpr int kWidth = kLanes * kVecWidth;
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
    if (lane == 0) {
      stream_max[stream][g] = state.max[g];
      stream_sum[stream][g] = state.sum[g];
    }
#pragma unroll
    for (int v = 0; v < kVecWidth; ++v) {
      stream_acc[(stream * kGroup + g) * kWidth + lane * kVecWidth + v] = state.acc[g][v];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_heads * args.head_dim; i += kThreads) {
    const int g = i / args.head_dim;
    const int d = i % args.head_dim;
    float max = -INFINITY;
    for (int s = 0; s < kStreams; ++s) max = fmaxf(max, stream_max[s][g]);
    float sum = 0;
    float acc = 0;
    for (int s = 0; s < kStreams; ++s) {
      const float weight = max == -INFINITY ? 0.0f : exp2f(stream_max[s][g] - max);
      sum += weight * stream_sum[s][g];
      acc += weight * stream_acc[(s * kGroup + g) * kWidth + d];
    }
    const int head = first_head + g;
    if (args.num_splits == 1) {
      out.row(token)[head * args.head_dim + d] = from_float_dev<T>(sum > 0 ? acc / sum : 0.0f);
      continue;
    }
    float* partial = args.partial +
                     ((static_cast<int64_t>(token) * args.num_heads + head) * args.num_splits + blockIdx.z) *
                         (args.head_dim + 2);
    partial[d] = acc;
    if (d == 0) {
      partial[args.head_dim] = max;
      partial[args.head_dim + 1] = sum;
    }
  }
}

// Grid: tokens × (kv heads · chunks) × splits.
template <int kLanes, int kGroup, typename T, typename Kv>
__global__ void __launch_bounds__(kThreads) attend(
    AttentionArgs args, RowView<const T> q_rows, const Kv* k_cache, const Kv* v_cache, RowView<T> out) {
  constexpr int kKeys = kGroup <= 4 ? 4 : 2;
  constexpr int kStreams = kThreads / kLanes;
  const int token = static_cast<int>(blockIdx.x);
  const int kv_head = static_cast<int>(blockIdx.y) / args.num_chunks;
  const int chunk = static_cast<int>(blockIdx.y) % args.num_chunks;
  const int first_head = kv_head * args.group + chunk * kGroup;
  const int num_heads = min(kGroup, args.group - chunk * kGroup);
  const TokenPlace place = place_of(args, token);
  const int share = (place.visible + args.num_splits - 1) / args.num_splits;
  const int begin = min(place.visible, share * static_cast<int>(blockIdx.z));
  const int end = min(place.visible, begin + share);

  const int stream = static_cast<int>(threadIdx.x) / kLanes;
  const int column = static_cast<int>(threadIdx.x) % kLanes * kVecWidth;
  const bool lane_active = column < args.head_dim;
  float q[kGroup][kVecWidth];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) {
#pragma unroll
    for (int v = 0; v < kVecWidth; ++v) q[g][v] = 0;
    if (g < num_heads && lane_active) {
      const T* from = q_rows.row(token) + (first_head + g) * args.head_dim + column;
#pragma unroll
      for (int v = 0; v < kVecWidth; ++v) q[g][v] = to_float_dev(from[v]) * args.scale;
    }
  }
  Accumulator<kGroup> state;
  state.clear();
  const int32_t* table = args.block_tables + place.sequence * args.table_stride;
  const int64_t head_at = kv_head * args.head_stride + column;
  // Every stream runs the same number of rounds: the shuffles inside want whole warps.
  for (int round = begin; round < end; round += kStreams * kKeys) {
    const Kv* k_at[kKeys];
    const Kv* v_at[kKeys];
    bool valid[kKeys];
#pragma unroll
    for (int j = 0; j < kKeys; ++j) {
      const int position = round + j * kStreams + stream;
      valid[j] = position < end;
      const int safe = valid[j] ? position : begin;
      const int64_t at = table[safe / args.block_size] * args.block_stride + head_at +
                         static_cast<int64_t>(safe % args.block_size) * args.head_dim;
      k_at[j] = k_cache + at;
      v_at[j] = v_cache + at;
    }
    take_keys<kKeys, kLanes, kGroup, Kv>(state, q, k_at, v_at, valid, lane_active);
  }
  write_merged<kLanes, kGroup, T>(args, state, token, first_head, num_heads, out);
}

// Grid: tokens × heads. Merges the splits' partial results.
template <typename T>
__global__ void merge_splits(AttentionArgs args, RowView<T> out) {
  const int token = static_cast<int>(blockIdx.x);
  const int head = static_cast<int>(blockIdx.y);
  const int stride = args.head_dim + 2;
  const float* partial =
      args.partial + (static_cast<int64_t>(token) * args.num_heads + head) * args.num_splits * stride;
  float max = -INFINITY;
  for (int s = 0; s < args.num_splits; ++s) max = fmaxf(max, partial[s * stride + args.head_dim]);
  for (int d = static_cast<int>(threadIdx.x); d < args.head_dim; d += static_cast<int>(blockDim.x)) {
    float sum = 0;
    float acc = 0;
    for (int s = 0; s < args.num_splits; ++s) {
      const float weight = max == -INFINITY ? 0.0f : exp2f(partial[s * stride + args.head_dim] - max);
      sum += weight * partial[s * stride + args.head_dim + 1];
      acc += weight * partial[s * stride + d];
    }
    out.row(token)[head * args.head_dim + d] = from_float_dev<T>(sum > 0 ? acc / sum : 0.0f);
  }
}

// Calls run with the number of lanes that hold one key's head_dim.
template <typename Run>
void with_lanes(int64_t head_dim, Run&& run) {
  if (head_dim <= 64) {
    run(IntConstant<8>{});
  } else if (head_dim <= 128) {
    run(IntConstant<16>{});
  } else {
    run(IntConstant<32>{});
  }
}

// Calls run with how many query heads a block takes at once.
template <typename Run>
void with_group(int group, Run&& run) {
  if (group == 1) {
    run(IntConstant<1>{});
  } else if (group == 2) {
    run(IntConstant<2>{});
  } else if (group <= 4) {
    run(IntConstant<4>{});
  } else {
    run(IntConstant<8>{});
  }
}

// Enough blocks for the whole device, as far as the scratch memory holds their results. The context's length
// is known on the device only: a share may be empty.
int choose_splits(int64_t num_tokens,
                  int64_t blocks_per_token,
                  const AttentionParams& params,
                  int64_t head_dim) {
  const int64_t max_context = params.block_tables.dim(1) * params.k_cache.dim(2);
  constexpr int64_t kLeastShare = 64;
  const int64_t wanted =
      std::min(ceil_div(kMinBlocks, num_tokens * blocks_per_token), ceil_div(max_context, kLeastShare));
  const int64_t bytes_per_split =
      num_tokens * params.num_heads * (head_dim + 2) * static_cast<int64_t>(sizeof(float));
  const int64_t fitting = CudaOpState::kAttentionBytes / bytes_per_split;
  return static_cast<int>(std::clamp<int64_t>(std::min(wanted, fitting), 1, kMaxSplits));
}

void check_attention(const AttentionParams& params) {
  CHECK(params.num_kv_heads > 0 && params.num_heads % params.num_kv_heads == 0,
        "{} heads over {} kv heads",
        params.num_heads,
        params.num_kv_heads);
  const Tensor& k = params.k_cache;
  CHECK(k.rank == 4 && k.dim(1) == params.num_kv_heads && k.stride(3) == 1 &&
            (k.dim(2) == 1 || k.stride(2) == k.dim(3)),
        "KV cache {}",
        k.to_string());
  CHECK(params.v_cache.dtype == k.dtype && params.v_cache.shape == k.shape &&
            params.v_cache.strides == k.strides,
        "K {} and V {}",
        k.to_string(),
        params.v_cache.to_string());
  CHECK(takes_head_dim(k.dim(3)), "head_dim {}", k.dim(3));
  CHECK(reinterpret_cast<uintptr_t>(k.data) % 16 == 0 &&
            reinterpret_cast<uintptr_t>(params.v_cache.data) % 16 == 0 && k.stride(0) % kVecWidth == 0 &&
            k.stride(1) % kVecWidth == 0,
        "KV cache {} is not aligned",
        k.to_string());
  CHECK(k.dtype == params.q.dtype || k.dtype == DType::kF8E4M3,
        "attention of {} over a cache in {}",
        params.q.dtype,
        k.dtype);
  CHECK_EQ(params.q.dim(1), params.num_heads * k.dim(3));
  CHECK_EQ(params.out.dim(1), params.q.dim(1));
  CHECK_EQ(params.out.dim(0), params.q.dim(0));
  CHECK_EQ(params.out.dtype, params.q.dtype);
  CHECK_EQ(params.block_tables.dtype, DType::kI32);
}

template <int kLanes, int kGroup, typename T, typename Kv>
void launch_attend(AttentionArgs args, const AttentionParams& params, device::CudaStream& cuda) {
  args.num_chunks = static_cast<int>(ceil_div(args.group, kGroup));
  const int64_t blocks_per_token = int64_t{params.num_kv_heads} * args.num_chunks;
  const int64_t num_tokens = params.q.dim(0);
  args.num_splits = choose_splits(num_tokens, blocks_per_token, params, args.head_dim);
  constexpr size_t kShared = sizeof(float) * kThreads * kVecWidth * kGroup;
  const dim3 grid(static_cast<unsigned>(num_tokens),
                  static_cast<unsigned>(blocks_per_token),
                  static_cast<unsigned>(args.num_splits));
  attend<kLanes, kGroup, T, Kv>
      <<<grid, kThreads, kShared, cuda.handle()>>>(args,
                                                   rows_as<const T>(params.q),
                                                   static_cast<const Kv*>(params.k_cache.data),
                                                   static_cast<const Kv*>(params.v_cache.data),
                                                   rows_as<T>(params.out));
  if (args.num_splits > 1) {
    const dim3 merge_grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(args.num_heads));
    merge_splits<T>
        <<<merge_grid, threads_for(args.head_dim, 128), 0, cuda.handle()>>>(args, rows_as<T>(params.out));
  }
}

}  // namespace

void attention_plan_cuda(OpState& state, device::Stream& stream, const AttentionPlanParams& params) {
  CHECK_LE(params.head_dim, kMaxHeadDim);
  CudaOpState& cuda_state = as_cuda_state(state);
  const AttentionPlan plan = lay_out_plan(
      params, cuda_state.plan_memory(), cuda_state.options(), cuda_state.hopper_prompts().processors());
  cuda_state.set_attention_plan(plan);
  device::CudaStream& cuda = device::as_cuda(stream);
  if (!plan.tensor_cores || !cuda.enter()) return;
  cuda.check(launch_attention_plan(plan, params, cuda.handle()), "attention_plan");
}

void attention_cuda(OpState& state, device::Stream& stream, const AttentionParams& params) {
  check_attention(params);
  device::CudaStream& cuda = device::as_cuda(stream);
  const int64_t num_sequences = params.context_lens.dim(0);
  if (params.q.numel() == 0 || !cuda.enter()) return;
  if (num_sequences == 0) return cuda.fill_zero(params.out);
  const AttentionPlan& plan = as_cuda_state(state).attention_plan();
  if (plan.tensor_cores) {
    CHECK(is_vectorizable(params.q, params.out), "rows of {} are not aligned", params.q.to_string());
    return cuda.check(
        attention_tensor_cores(plan, params, as_cuda_state(state).hopper_prompts(), cuda.handle()),
        "attention");
  }
  constexpr float kLog2E = 1.44269504088896340736f;
  const AttentionArgs args{.query_starts = i32_vector(params.query_starts, num_sequences + 1),
                           .context_lens = i32_vector(params.context_lens, num_sequences),
                           .block_tables = params.block_tables.as<int32_t>(),
                           .table_stride = params.block_tables.stride(0),
                           .num_sequences = static_cast<int>(num_sequences),
                           .num_heads = params.num_heads,
                           .group = params.num_heads / params.num_kv_heads,
                           .head_dim = static_cast<int>(params.k_cache.dim(3)),
                           .block_size = static_cast<int>(params.k_cache.dim(2)),
                           .block_stride = params.k_cache.stride(0),
                           .head_stride = params.k_cache.stride(1),
                           .scale = params.scale * kLog2E,
                           .partial = as_cuda_state(state).attention_scratch()};
  with_activation_type(params.q.dtype, [&](auto type) {
    using T = decltype(type);
    with_lanes(args.head_dim, [&](auto lanes) {
      with_group(args.group, [&](auto group) {
        with_kv_type<T>(params.q.dtype, params.k_cache.dtype, [&](auto kv_type) {
          launch_attend<decltype(lanes)::value, decltype(group)::value, T, decltype(kv_type)>(
              args, params, cuda);
        });
      });
    });
  });
  cuda.check(cudaGetLastError(), "attention");
}

}  // namespace llm_dist::kernels
