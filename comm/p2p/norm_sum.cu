// What stands between two matrices of a step in one kernel: the sum over the ranks, its addition to the
// residual stream, and the norm. A block a row. The row's terms travel as packets, as in an all-reduce of a
// few KiB, and what all_reduce.cu says of those holds here: row r is block r's, which counts the calls that
// have a row r, in memory of its own. So this kernel and the all-reduces may follow each other in any order.
//
// The sum is rounded as all_reduce_sum rounds it, and the rest is norm_row: the bits of the calls apart.
#include "comm/p2p/norm_sum.h"
#include "comm/p2p/packets.cuh"
#include "comm/p2p/peer_launch.h"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/overlap.cuh"

namespace llm_dist::comm {
namespace {

template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kernels::kMostNormThreads)
    norm_sums(const __grid_constant__ PeerView peers, const NormRows rows) {
  constexpr int kVec = kPerUnit<T>;
  const PacketRegion region{peers.layout.norm_packets, kNormRows * kNormRowUnits};
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows.width;
  const uint4* x = reinterpret_cast<const uint4*>(static_cast<const T*>(rows.x) + begin);
  T* residual = static_cast<T*>(rows.residual) + begin;
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.norm_calls) + blockIdx.x;
  const int units = rows.width / kVec;
  const int first = static_cast<int>(threadIdx.x);
  const int place = static_cast<int>(blockIdx.x) * kNormRowUnits;
  uint64_t number = 0;
  uint4 kept = {};
  float before[kVec] = {};
  auto send = [&] {
    kernels::wait_for_previous();
    kernels::let_next_start();
    number = load_relaxed(calls) + 1;
    if (first < units) {
      kept = x[first];
      kernels::load_vec<kVec>(residual + first * kVec, before);
    }
    for (int unit = first; unit < units; unit += static_cast<int>(blockDim.x))
      send_packets(peers, region, number, place + unit, unit == first ? kept : x[unit]);
  };
  auto take = [&](int element, float(&values)[kVec]) {
    const int unit = element / kVec;
    const uint4 mine = unit == first ? kept : x[unit];
    uint4 raw[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) raw[rank] = mine;
    // Of an aborted group nobody reads the result.
    (void)receive_packets(peers, region, number, place + unit, raw);
    unpack<T>(sum_units<T>(raw, peers.size), values);
    if (unit != first) kernels::load_vec<kVec>(residual + element, before);
    kernels::add_into<kVec>(before, values, residual + element);
  };
  const T* weight = static_cast<const T*>(rows.weight);
  T* out = static_cast<T*>(rows.out) + begin;
  kernels::norm_row<kVec>(rows.width, weight, rows.epsilon, send, take, const_cast<const T*>(residual), out);
  if (threadIdx.x == 0) *calls = number;  // read by all before the block added up
}

using Kernel = void (*)(PeerView, NormRows);

template <typename T>
Kernel kernel_of(int size) {
  if (size == 2) return norm_sums<T, 2>;
  return size <= 4 ? norm_sums<T, 4> : norm_sums<T, kMaxPeerRanks>;
}

Kernel kernel_of(DType dtype, int size) {
  return dtype == DType::kF16 ? kernel_of<__half>(size) : kernel_of<__nv_bfloat16>(size);
}

}  // namespace

cudaError_t sum_into_norm(
    const PeerView& peers, DType dtype, const NormRows& rows, int64_t num_rows, cudaStream_t stream) {
  CHECK(sums_into_norm(num_rows, rows.width, dtype), "{} rows of {} {}", num_rows, rows.width, dtype);
  return launch_beside_peers(kernel_of(dtype, peers.size),
                             {.grid = dim3(static_cast<unsigned>(num_rows)),
                              .threads = kernels::norm_threads(rows.width, kPerUnit<__half>),
                              .stream = stream},
                             peers,
                             rows);
}

cudaError_t load_norm_sum_kernels(int size) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    cudaFuncAttributes attributes{};
    cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel_of(dtype, size)));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace llm_dist::comm
