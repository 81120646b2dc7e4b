// Three ways to sum a tensor over GPUs that can write to each other's memory. All push: a write goes one way,
// a read would go there and back. Every rank adds up the same values in the same order, so all have the same
// bits.
//
// Blocks of one number on the ranks are on their own (peer_layout.h). Such a block counts its calls; the
// count is in its GPU's memory, since a graph's kernels get the same arguments at each replay, and all ranks
// count alike, since they make the same calls. Nothing is cleared between calls: what an earlier call left
// carries an earlier number. Below, "call n" is the n-th of one way in which the block takes part. Exchanges
// of parts are calls of two of these ways (exchange.cu).
//
// No write comes too early. A rank's kernels run one after the other (wait_for_previous), so that
//   (1) what a rank sends in call n, it sends after it has read all that it reads in call n - 1, and
//   (2) a rank that ends call n has heard from every peer in call n.
// Packets, one shot: two slots, taken in turn. A rank writes to a peer's slot of call n in call n + 2, after
// it has heard from the peer in call n + 1 (2), which has then read that slot (1).
// Two shots: one place each for shares and for finished parts. A rank writes shares of call n + 1 after call
// n, in which the peer's finished part came (2), sent after the peer had read its shares of call n. It writes
// a finished part of call n + 1 after the peer's shares of call n + 1 came, sent after the peer had read the
// finished parts of call n (1).
//
// Blocks only wait for blocks of the same number, and a GPU has room for all of a call's blocks at once,
// unless other kernels that wait for a peer hold it.
#include <algorithm>

#include "comm/p2p/all_reduce.h"
#include "comm/p2p/meet_peers.cuh"
#include "comm/p2p/packets.cuh"
#include "comm/p2p/peer_launch.h"
#include "comm/p2p/staged.cuh"
#include "kernels/cuda/device/overlap.cuh"

namespace llm_dist::comm {
namespace {

// For what a step waits for: the number of the call travels with each 8 bytes, so that there is one trip
// between GPUs, no fence and no barrier. Half of what travels are numbers.
template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kPacketThreads)
    sum_packets(const __grid_constant__ PeerView peers, const FlatTensor tensor) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.packet_calls) + blockIdx.x;
  const uint64_t number = load_relaxed(calls) + 1;
  const PacketRegion region{peers.layout.packets, peers.layout.packet_units};
  const int units = units_of<T>(tensor);
  const int first = static_cast<int>(blockIdx.x * kPacketThreads + threadIdx.x);
  constexpr int kStep = kPacketBlocks * kPacketThreads;
  uint4 kept = {};
  if (first < units) kept = load_unit<T>(tensor, first);
  for (int unit = first; unit < units; unit += kStep)
    send_packets(peers, region, number, unit, unit == first ? kept : load_unit<T>(tensor, unit));
  for (int unit = first; unit < units; unit += kStep) {
    const uint4 mine = unit == first ? kept : load_unit<T>(tensor, unit);
    uint4 raw[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) raw[rank] = mine;
    if (!receive_packets(peers, region, number, unit, raw)) break;
    store_unit<T>(tensor, unit, sum_units<T>(raw, peers.size));
  }
  __syncthreads();
  if (threadIdx.x == 0) *calls = number;
}

template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kStageThreads)
    sum_one_shot(const __grid_constant__ PeerView peers, const FlatTensor tensor) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.one_shot_calls) + blockIdx.x;
  const uint64_t number = load_relaxed(calls) + 1;
  const int units = units_of<T>(tensor);
  const int64_t stride = peers.layout.one_shot_units * kUnitBytes;
  const int64_t slot = peers.layout.one_shot + static_cast<int64_t>(number % 2) * peers.size * stride;
  move_units(
      units,
      [&](int unit) { return load_unit<T>(tensor, unit); },
      [&](int unit, uint4 raw) {
        for (int distance = 1; distance < peers.size; ++distance)
          at<uint4>(peers, peer_behind(peers, distance), slot + peers.rank * stride)[unit] = raw;
      });
  if (meet_peers(peers, peers.layout.one_shot_flags, number)) {
    move_units(
        units,
        [&](int unit) {
          return sum_staged<T, kMostRanks>(
              peers, load_unit<T>(tensor, unit), slot + unit * kUnitBytes, stride);
        },
        [&](int unit, uint4 raw) { store_unit<T>(tensor, unit, raw); });
  }
  if (threadIdx.x == 0) *calls = number;  // read by all before they met
}

// The units of a tensor that are one rank's to sum up.
struct Part {
  int begin = 0;
  int units = 0;
};

__device__ inline Part part_of(const PeerView& peers, int units, int rank) {
  const int most = (units + peers.size - 1) / peers.size;
  const int begin = min(rank * most, units);
  return {begin, min(most, units - begin)};
}

template <typename T>
__device__ void send_shares(const PeerView& peers, const FlatTensor& tensor, int64_t stride) {
  const int units = units_of<T>(tensor);
  for (int distance = 1; distance < peers.size; ++distance) {
    const int peer = peer_behind(peers, distance);
    const Part part = part_of(peers, units, peer);
    uint4* to = at<uint4>(peers, peer, peers.layout.scatter + peers.rank * stride);
    move_units(
        part.units,
        [&](int unit) { return load_unit<T>(tensor, part.begin + unit); },
        [&](int unit, uint4 raw) { to[unit] = raw; });
  }
}

template <typename T, int kMostRanks>
__device__ void sum_own_part(const PeerView& peers, const FlatTensor& tensor, int64_t stride) {
  const Part part = part_of(peers, units_of<T>(tensor), peers.rank);
  move_units(
      part.units,
      [&](int unit) {
        return sum_staged<T, kMostRanks>(
            peers, load_unit<T>(tensor, part.begin + unit), peers.layout.scatter + unit * kUnitBytes, stride);
      },
      [&](int unit, uint4 raw) {
        for (int distance = 1; distance < peers.size; ++distance) {
          const int peer = peer_behind(peers, distance);
          at<uint4>(peers, peer, peers.layout.gather + peers.rank * stride)[unit] = raw;
        }
        store_unit<T>(tensor, part.begin + unit, raw);
      });
}

template <typename T>
__device__ void take_finished_parts(const PeerView& peers, const FlatTensor& tensor, int64_t stride) {
  const int units = units_of<T>(tensor);
  for (int distance = 1; distance < peers.size; ++distance) {
    const int peer = peer_behind(peers, distance);
    const Part part = part_of(peers, units, peer);
    const uint4* from = at<uint4>(peers, peers.rank, peers.layout.gather + peer * stride);
    move_units(
        part.units,
        [&](int unit) { return load_staged(from + unit); },
        [&](int unit, uint4 raw) { store_unit<T>(tensor, part.begin + unit, raw); });
  }
}

// Each rank gets a share of its part from every other, sums it up and hands out the result.
template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kStageThreads)
    sum_two_shot(const __grid_constant__ PeerView peers, const FlatTensor tensor) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.two_shot_calls) + blockIdx.x;
  const uint64_t number = load_relaxed(calls) + 1;
  const int64_t stride = peers.layout.part_units * kUnitBytes;
  send_shares<T>(peers, tensor, stride);
  bool met = meet_peers(peers, peers.layout.scatter_flags, number);
  if (met) {
    sum_own_part<T, kMostRanks>(peers, tensor, stride);
    met = meet_peers(peers, peers.layout.gather_flags, number);
  }
  if (met) take_finished_parts<T>(peers, tensor, stride);
  if (threadIdx.x == 0) *calls = number;  // read by all before they met
}

using Kernel = void (*)(PeerView, FlatTensor);

template <typename T, int kMostRanks>
Kernel kernel_of(PeerWay way) {
  switch (way) {
    case PeerWay::kPackets: return sum_packets<T, kMostRanks>;
    case PeerWay::kOneShot: return sum_one_shot<T, kMostRanks>;
    case PeerWay::kTwoShot: return sum_two_shot<T, kMostRanks>;
  }
  return nullptr;
}

template <typename T>
Kernel kernel_of(PeerWay way, int size) {
  if (size == 2) return kernel_of<T, 2>(way);
  return size <= 4 ? kernel_of<T, 4>(way) : kernel_of<T, kMaxPeerRanks>(way);
}

Kernel kernel_of(PeerWay way, DType dtype, int size) {
  switch (dtype) {
    case DType::kF32: return kernel_of<float>(way, size);
    case DType::kF16: return kernel_of<__half>(way, size);
    case DType::kBF16: return kernel_of<__nv_bfloat16>(way, size);
    default: CHECK(false, "sums of {} over peer memory", dtype);
  }
}

}  // namespace

cudaError_t all_reduce_sum(
    PeerWay way, const PeerView& peers, DType dtype, void* data, int64_t count, cudaStream_t stream) {
  const FlatTensor tensor{.data = data,
                          .count = static_cast<int>(count),
                          .aligned = reinterpret_cast<uintptr_t>(data) % kUnitBytes == 0};
  const int64_t units = units_in(count * dtype_bytes(dtype));
  const int64_t most_of_a_rank = way == PeerWay::kTwoShot ? (units + peers.size - 1) / peers.size : units;
  const bool packets = way == PeerWay::kPackets;
  const int threads = packets ? kPacketThreads : kStageThreads;
  const int64_t wanted = (most_of_a_rank + threads - 1) / threads;
  const int64_t blocks = std::min<int64_t>(wanted, packets ? kPacketBlocks : kStageBlocks);
  return launch_beside_peers(
      kernel_of(way, dtype, peers.size),
      {.grid = dim3(static_cast<unsigned>(blocks)), .threads = threads, .stream = stream},
      peers,
      tensor);
}

cudaError_t load_all_reduce_kernels(int size) {
  for (PeerWay way : {PeerWay::kPackets, PeerWay::kOneShot, PeerWay::kTwoShot}) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      cudaFuncAttributes attributes{};
      cudaError_t error =
          cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel_of(way, dtype, size)));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace llm_dist::comm
