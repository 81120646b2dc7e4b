// What kernels over peer memory share: a tensor's units, their sums over the ranks, and packets. How packets
// and slots keep calls apart: all_reduce.cu.
#pragma once

#include "comm/p2p/all_reduce.h"
#include "comm/p2p/system_memory.cuh"
#include "kernels/cuda/device/peer_terms.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace llm_dist::comm {

struct FlatTensor {
  void* data = nullptr;
  int count = 0;         // of elements
  bool aligned = false;  // to a unit
};

template <typename T>
constexpr int kPerUnit = kUnitBytes / sizeof(T);

template <typename T>
__device__ int units_of(const FlatTensor& tensor) {
  return (tensor.count + kPerUnit<T> - 1) / kPerUnit<T>;
}

// Zeros behind the end.
template <typename T>
__device__ uint4 load_unit(const FlatTensor& tensor, int unit) {
  const int first = unit * kPerUnit<T>;
  const T* from = static_cast<const T*>(tensor.data) + first;
  if (tensor.aligned && first + kPerUnit<T> <= tensor.count) return *reinterpret_cast<const uint4*>(from);
  uint4 raw = {};
  T* values = reinterpret_cast<T*>(&raw);
#pragma unroll
  for (int i = 0; i < kPerUnit<T>; ++i) {
    if (first + i < tensor.count) values[i] = from[i];
  }
  return raw;
}

template <typename T>
__device__ void store_unit(const FlatTensor& tensor, int unit, uint4 raw) {
  const int first = unit * kPerUnit<T>;
  T* to = static_cast<T*>(tensor.data) + first;
  if (tensor.aligned && first + kPerUnit<T> <= tensor.count) {
    *reinterpret_cast<uint4*>(to) = raw;
    return;
  }
  const T* values = reinterpret_cast<const T*>(&raw);
#pragma unroll
  for (int i = 0; i < kPerUnit<T>; ++i) {
    if (first + i < tensor.count) to[i] = values[i];
  }
}

template <typename T>
__device__ void unpack(uint4 raw, float (&values)[kPerUnit<T>]) {
  const T* packed = reinterpret_cast<const T*>(&raw);
#pragma unroll
  for (int i = 0; i < kPerUnit<T>; ++i) values[i] = kernels::to_float_dev(packed[i]);
}

// raw: by rank.
template <typename T, int kMostRanks>
__device__ uint4 sum_units(const uint4 (&raw)[kMostRanks], int size) {
  float sum[kPerUnit<T>];
#pragma unroll
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank >= size) break;
    const T* values = reinterpret_cast<const T*>(&raw[rank]);
#pragma unroll
    for (int i = 0; i < kPerUnit<T>; ++i) {
      const float value = kernels::to_float_dev(values[i]);
      sum[i] = rank == 0 ? value : sum[i] + value;
    }
  }
  uint4 rounded;
  T* values = reinterpret_cast<T*>(&rounded);
#pragma unroll
  for (int i = 0; i < kPerUnit<T>; ++i) values[i] = kernels::from_float_dev<T>(sum[i]);
  return rounded;
}

template <typename T>
__device__ T* at(const PeerView& peers, int rank, int64_t offset) {
  return reinterpret_cast<T*>(peers.memory[rank] + offset);
}

// The `distance`-th rank behind this one: each rank begins with another peer.
__device__ inline int peer_behind(const PeerView& peers, int distance) {
  const int rank = peers.rank + distance;
  return rank < peers.size ? rank : rank - peers.size;
}

__device__ inline bool gives_up(const PeerView& peers, uint32_t& polls) {
  return kernels::gives_up(peers.aborted, polls);
}

// Packets [2 slots][size][units], the slots taken in turn.
struct PacketRegion {
  int64_t offset = 0;  // in every rank's memory
  int64_t units = 0;   // whole runs
};

// Where a unit's first packet lies that `source` sends in call `number`. The second is a run behind it: what
// a warp stores at a time is one piece, and so goes over the link in whole packets of its own.
__device__ inline int64_t packets_of(
    const PeerView& peers, const PacketRegion& region, int source, uint64_t number, int unit) {
  const int64_t part = static_cast<int64_t>(number % 2) * peers.size + source;
  const int in_run = unit % kPacketRun;
  return region.offset + (part * region.units + unit - in_run) * kPacketsBytes +
         in_run * static_cast<int64_t>(sizeof(Packet));
}

__device__ inline uint64_t joined(uint32_t low, uint32_t high) {
  return low | static_cast<uint64_t>(high) << 32;
}

// `to`: where packets_of says.
__device__ inline void store_packets(Packet* to, uint64_t number, uint4 raw) {
  store_packet(to, joined(raw.x, raw.y), number);
  store_packet(to + kPacketRun, joined(raw.z, raw.w), number);
}

// The unit that store_packets puts there. `arrived` becomes false where a packet has another number.
__device__ inline void load_packets(const Packet* from, uint64_t number, uint4& raw, bool& arrived) {
  const Packet low = load_packet(from);
  const Packet high = load_packet(from + kPacketRun);
  arrived = arrived && low.number == number && high.number == number;
  raw = make_uint4(static_cast<uint32_t>(low.data),
                   static_cast<uint32_t>(low.data >> 32),
                   static_cast<uint32_t>(high.data),
                   static_cast<uint32_t>(high.data >> 32));
}

// The same to every peer.
__device__ inline void send_packets(
    const PeerView& peers, const PacketRegion& region, uint64_t number, int unit, uint4 raw) {
  const int64_t offset = packets_of(peers, region, peers.rank, number, unit);
  for (int distance = 1; distance < peers.size; ++distance)
    store_packets(at<Packet>(peers, peer_behind(peers, distance), offset), number, raw);
}

// Fills in all ranks' but this one's; false when the group was aborted.
template <int kMostRanks>
__device__ bool receive_packets(
    const PeerView& peers, const PacketRegion& region, uint64_t number, int unit, uint4 (&raw)[kMostRanks]) {
  uint32_t polls = kernels::first_poll();
  do {
    bool arrived = true;
#pragma unroll
    for (int source = 0; source < kMostRanks; ++source) {
      if (source >= peers.size || source == peers.rank) continue;
      const Packet* from = at<Packet>(peers, peers.rank, packets_of(peers, region, source, number, unit));
      load_packets(from, number, raw[source], arrived);
    }
    if (arrived) return true;
  } while (!gives_up(peers, polls));
  return false;
}

}  // namespace llm_dist::comm
