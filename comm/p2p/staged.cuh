// How a block moves its units of a tensor to where they wait for a meeting, and from there. Such kernels have
// kStageThreads threads and at most kStageBlocks blocks.
#pragma once

#include "comm/p2p/packets.cuh"

namespace llm_dist::comm {

// Units that a thread has on their way at once.
constexpr int kStagedBatch = 4;

// Calls put(unit, get(unit)) for those of `units` that fall to this thread, a batch of gets before its puts.
template <typename Get, typename Put>
__device__ void move_units(int units, Get&& get, Put&& put) {
  constexpr int kStep = kStageBlocks * kStageThreads;
  const int first = static_cast<int>(blockIdx.x * kStageThreads + threadIdx.x);
  for (int begin = first; begin < units; begin += kStagedBatch * kStep) {
    uint4 raw[kStagedBatch];
#pragma unroll
    for (int i = 0; i < kStagedBatch; ++i) {
      if (begin + i * kStep < units) raw[i] = get(begin + i * kStep);
    }
#pragma unroll
    for (int i = 0; i < kStagedBatch; ++i) {
      if (begin + i * kStep < units) put(begin + i * kStep, raw[i]);
    }
  }
}

// The sum of this rank's `mine` and of what the others have put into this rank's memory: `staged` is the
// offset of rank 0's unit, `stride` the bytes from a rank's to the next one's.
template <typename T, int kMostRanks>
__device__ uint4 sum_staged(const PeerView& peers, uint4 mine, int64_t staged, int64_t stride) {
  uint4 raw[kMostRanks];
#pragma unroll
  for (int source = 0; source < kMostRanks; ++source) {
    raw[source] = mine;
    if (source < peers.size && source != peers.rank)
      raw[source] = load_staged(at<uint4>(peers, peers.rank, staged + source * stride));
  }
  return sum_units<T>(raw, peers.size);
}

}  // namespace llm_dist::comm
