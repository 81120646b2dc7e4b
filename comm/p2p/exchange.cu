// Exchanges in which each rank has a part for every other: all-gathers, where it is the same part for all,
// all-to-alls, and reduce-scatters, which sum up what has come. Two ways, as for all-reduces: packets, for
// what a step waits for, and one shot, where a block puts its units of the parts into the peers' memory,
// meets the peers' blocks of its number, and takes what they have put into this rank's.
//
// Both ways push. Pulling would begin with a copy to where the peers can read, since `in` may lie anywhere:
// no fewer bytes for parts that differ, and for the same part between two ranks. Of the same part between
// more, pulling would spare a rank's memory a fifth of the bytes (four ranks) or a quarter (eight). It has
// about ten times what the links have.
//
// Exchanges and sums of one way share its memory, its counts and its flags, and what all_reduce.cu says of
// them holds for both, as it does not ask what a call sends or does with what has come. In either
//   - a unit of what a rank sends to a peer falls to the block that has the unit of this number in a sum, and
//     goes to the same place in the slot,
//   - whether a block takes part follows from the bytes of a part, which all ranks know alike, so that all
//     count alike whichever calls have come before, and
//   - a block that takes part has a unit for every peer and one from every peer (packets), or meets them all
//     (one shot): it has heard from every peer when it ends.
// A slot has what some earlier call has left, packets with its number. Two slots in turn are enough, so that
// no closing meeting tells a peer that its units have been read.
//
// How a thread reads `in` and writes `out` depends on their addresses, which are this rank's own: units in
// one piece, or word by word, or byte by byte. What travels does not.
#include <algorithm>

#include "comm/p2p/exchange.h"
#include "comm/p2p/meet_peers.cuh"
#include "comm/p2p/packets.cuh"
#include "comm/p2p/peer_launch.h"
#include "comm/p2p/staged.cuh"
#include "kernels/cuda/device/overlap.cuh"

namespace llm_dist::comm {
namespace {

// Tensors as kernels with elements of one type see them.
struct Parts {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
  int count = 0;  // of a part
  bool same_for_all = false;
};

template <typename T>
__device__ FlatTensor part_of(std::byte* tensor, int count, int index) {
  std::byte* data = tensor + static_cast<int64_t>(index) * count * static_cast<int64_t>(sizeof(T));
  return {.data = data, .count = count, .aligned = reinterpret_cast<uintptr_t>(data) % kUnitBytes == 0};
}

template <typename T>
__device__ uint4 load_for(const Parts& parts, int rank, int unit) {
  return load_unit<T>(part_of<T>(parts.in, parts.count, parts.same_for_all ? 0 : rank), unit);
}

template <typename T>
__device__ int units_of_part(const Parts& parts) {
  return (parts.count + kPerUnit<T> - 1) / kPerUnit<T>;
}

// take(unit, raw) gets what has come from every rank, by rank, this one's own for itself among it.
template <typename T, int kMostRanks, typename Take>
__device__ void exchange_packets(const PeerView& peers, const Parts& parts, Take&& take) {
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.packet_calls) + blockIdx.x;
  const uint64_t number = load_relaxed(calls) + 1;
  const PacketRegion region{peers.layout.packets, peers.layout.packet_units};
  const int units = units_of_part<T>(parts);
  const int first = static_cast<int>(blockIdx.x * kPacketThreads + threadIdx.x);
  constexpr int kStep = kPacketBlocks * kPacketThreads;
  for (int unit = first; unit < units; unit += kStep) {
    const int64_t offset = packets_of(peers, region, peers.rank, number, unit);
    uint4 raw[kMostRanks];  // by distance; all loads are on their way before the first packet
#pragma unroll
    for (int distance = 1; distance < kMostRanks; ++distance) {
      if (distance >= peers.size) break;
      raw[distance] = parts.same_for_all && distance > 1
                          ? raw[1]
                          : load_for<T>(parts, peer_behind(peers, distance), unit);
    }
#pragma unroll
    for (int distance = 1; distance < kMostRanks; ++distance) {
      if (distance >= peers.size) break;
      store_packets(at<Packet>(peers, peer_behind(peers, distance), offset), number, raw[distance]);
    }
  }
  for (int unit = first; unit < units; unit += kStep) {
    const uint4 mine = load_for<T>(parts, peers.rank, unit);
    uint4 raw[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) raw[rank] = mine;
    if (!receive_packets(peers, region, number, unit, raw)) break;
    take(unit, raw);
  }
  __syncthreads();
  if (threadIdx.x == 0) *calls = number;
}

template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kPacketThreads)
    move_packets(const __grid_constant__ PeerView peers, const __grid_constant__ Parts parts) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  exchange_packets<T, kMostRanks>(peers, parts, [&](int unit, const uint4(&raw)[kMostRanks]) {
#pragma unroll
    for (int source = 0; source < kMostRanks; ++source) {
      if (source >= peers.size) break;
      store_unit<T>(part_of<T>(parts.out, parts.count, source), unit, raw[source]);
    }
  });
}

template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kPacketThreads)
    scatter_sum_packets(const __grid_constant__ PeerView peers, const __grid_constant__ Parts parts) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  exchange_packets<T, kMostRanks>(peers, parts, [&](int unit, const uint4(&raw)[kMostRanks]) {
    store_unit<T>(part_of<T>(parts.out, parts.count, 0), unit, sum_units<T>(raw, peers.size));
  });
}

// Calls put(peer, unit, get(peer, unit)) for every peer and those of `units` that fall to this thread. As
// move_units, with more than one peer's units on their way at once.
template <int kMostRanks, typename Get, typename Put>
__device__ void move_units_of_peers(const PeerView& peers, int units, Get&& get, Put&& put) {
  constexpr int kAtOnce = kMostRanks >= 2 * kStagedBatch ? 1 : 2 * kStagedBatch / kMostRanks;
  constexpr int kStep = kStageBlocks * kStageThreads;
  const int first = static_cast<int>(blockIdx.x * kStageThreads + threadIdx.x);
  for (int begin = first; begin < units; begin += kAtOnce * kStep) {
    uint4 raw[kAtOnce][kMostRanks];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int distance = 1; distance < kMostRanks; ++distance) {
        if (begin + i * kStep < units && distance < peers.size)
          raw[i][distance] = get(peer_behind(peers, distance), begin + i * kStep);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int distance = 1; distance < kMostRanks; ++distance) {
        if (begin + i * kStep < units && distance < peers.size)
          put(peer_behind(peers, distance), begin + i * kStep, raw[i][distance]);
      }
    }
  }
}

// own(): what needs no peer, before the meeting. take(staged, stride), after it: the offset of what rank 0
// has put into this rank's memory, and the bytes from there to the next rank's.
template <typename T, int kMostRanks, typename Own, typename Take>
__device__ void exchange_one_shot(const PeerView& peers, const Parts& parts, Own&& own, Take&& take) {
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.one_shot_calls) + blockIdx.x;
  const uint64_t number = load_relaxed(calls) + 1;
  const int64_t stride = peers.layout.one_shot_units * kUnitBytes;
  const int64_t slot = peers.layout.one_shot + static_cast<int64_t>(number % 2) * peers.size * stride;
  move_units_of_peers<kMostRanks>(
      peers,
      units_of_part<T>(parts),
      [&](int peer, int unit) { return load_for<T>(parts, peer, unit); },
      [&](int peer, int unit, uint4 raw) { at<uint4>(peers, peer, slot + peers.rank * stride)[unit] = raw; });
  own();
  if (meet_peers(peers, peers.layout.one_shot_flags, number)) take(slot, stride);
  if (threadIdx.x == 0) *calls = number;  // read by all before they met
}

template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kStageThreads)
    move_one_shot(const __grid_constant__ PeerView peers, const __grid_constant__ Parts parts) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  const int units = units_of_part<T>(parts);
  auto put = [&](int source, int unit, uint4 raw) {
    store_unit<T>(part_of<T>(parts.out, parts.count, source), unit, raw);
  };
  exchange_one_shot<T, kMostRanks>(
      peers,
      parts,
      [&] {
        move_units(
            units,
            [&](int unit) { return load_for<T>(parts, peers.rank, unit); },
            [&](int unit, uint4 raw) { put(peers.rank, unit, raw); });
      },
      [&](int64_t staged, int64_t stride) {
        move_units_of_peers<kMostRanks>(
            peers,
            units,
            [&](int source, int unit) {
              return load_staged(at<uint4>(peers, peers.rank, staged + source * stride) + unit);
            },
            put);
      });
}

template <typename T, int kMostRanks>
__global__ void __launch_bounds__(kStageThreads)
    scatter_sum_one_shot(const __grid_constant__ PeerView peers, const __grid_constant__ Parts parts) {
  kernels::wait_for_previous();
  kernels::let_next_start();
  exchange_one_shot<T, kMostRanks>(
      peers,
      parts,
      [] {},
      [&](int64_t staged, int64_t stride) {
        move_units(
            units_of_part<T>(parts),
            [&](int unit) {
              const uint4 mine = load_for<T>(parts, peers.rank, unit);
              return sum_staged<T, kMostRanks>(peers, mine, staged + unit * kUnitBytes, stride);
            },
            [&](int unit, uint4 raw) { store_unit<T>(part_of<T>(parts.out, parts.count, 0), unit, raw); });
      });
}

using Kernel = void (*)(PeerView, Parts);

// Of moves, T is a word that in, out and a part are made of: the largest that there is a kernel for.
using Word = uint32_t;

template <typename T, int kMostRanks>
Kernel move_kernel_of(PeerWay way) {
  return way == PeerWay::kPackets ? move_packets<T, kMostRanks> : move_one_shot<T, kMostRanks>;
}

template <typename T, int kMostRanks>
Kernel sum_kernel_of(PeerWay way) {
  return way == PeerWay::kPackets ? scatter_sum_packets<T, kMostRanks> : scatter_sum_one_shot<T, kMostRanks>;
}

template <typename T>
Kernel move_kernel_of(PeerWay way, int size) {
  if (size == 2) return move_kernel_of<T, 2>(way);
  return size <= 4 ? move_kernel_of<T, 4>(way) : move_kernel_of<T, kMaxPeerRanks>(way);
}

template <typename T>
Kernel sum_kernel_of(PeerWay way, int size) {
  if (size == 2) return sum_kernel_of<T, 2>(way);
  return size <= 4 ? sum_kernel_of<T, 4>(way) : sum_kernel_of<T, kMaxPeerRanks>(way);
}

Kernel move_kernel_of(PeerWay way, bool of_words, int size) {
  return of_words ? move_kernel_of<Word>(way, size) : move_kernel_of<uint8_t>(way, size);
}

Kernel sum_kernel_of(PeerWay way, DType dtype, int size) {
  switch (dtype) {
    case DType::kF32: return sum_kernel_of<float>(way, size);
    case DType::kF16: return sum_kernel_of<__half>(way, size);
    case DType::kBF16: return sum_kernel_of<__nv_bfloat16>(way, size);
    default: CHECK(false, "sums of {} over peer memory", dtype);
  }
}

// The same blocks on every rank.
cudaError_t launch(PeerWay way,
                   Kernel kernel,
                   const PeerView& peers,
                   const Parts& parts,
                   int64_t part_bytes,
                   cudaStream_t stream) {
  const int64_t units = units_in(part_bytes);
  const bool packets = way == PeerWay::kPackets;
  CHECK(way != PeerWay::kTwoShot, "an exchange of parts in two shots");
  CHECK_LE(units, packets ? peers.layout.packet_units : peers.layout.one_shot_units);
  const int threads = packets ? kPacketThreads : kStageThreads;
  const int64_t wanted = (units + threads - 1) / threads;
  const int64_t blocks = std::min<int64_t>(wanted, packets ? kPacketBlocks : kStageBlocks);
  return launch_beside_peers(
      kernel,
      {.grid = dim3(static_cast<unsigned>(blocks)), .threads = threads, .stream = stream},
      peers,
      parts);
}

std::byte* bytes_of(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

cudaError_t load(Kernel kernel) {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
}

}  // namespace

cudaError_t move_parts(PeerWay way, const PeerView& peers, const PartsToMove& parts, cudaStream_t stream) {
  auto in_words = [](auto place) { return place % static_cast<decltype(place)>(sizeof(Word)) == 0; };
  const bool of_words = in_words(reinterpret_cast<uintptr_t>(parts.in)) &&
                        in_words(reinterpret_cast<uintptr_t>(parts.out)) && in_words(parts.bytes);
  const int64_t element_bytes = of_words ? sizeof(Word) : 1;
  return launch(way,
                move_kernel_of(way, of_words, peers.size),
                peers,
                {.in = bytes_of(parts.in),
                 .out = bytes_of(parts.out),
                 .count = static_cast<int>(parts.bytes / element_bytes),
                 .same_for_all = parts.same_for_all},
                parts.bytes,
                stream);
}

cudaError_t sum_parts(PeerWay way, const PeerView& peers, const PartsToSum& parts, cudaStream_t stream) {
  return launch(
      way,
      sum_kernel_of(way, parts.dtype, peers.size),
      peers,
      {.in = bytes_of(parts.in), .out = bytes_of(parts.out), .count = static_cast<int>(parts.count)},
      parts.count * dtype_bytes(parts.dtype),
      stream);
}

cudaError_t load_exchange_kernels(int size) {
  for (PeerWay way : {PeerWay::kPackets, PeerWay::kOneShot}) {
    for (bool of_words : {false, true}) {
      cudaError_t error = load(move_kernel_of(way, of_words, size));
      if (error != cudaSuccess) return error;
    }
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      cudaError_t error = load(sum_kernel_of(way, dtype, size));
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace llm_dist::comm
