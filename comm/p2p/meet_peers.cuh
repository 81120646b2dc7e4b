// How the blocks of one number on all ranks wait for each other within a call.
#pragma once

#include "comm/p2p/packets.cuh"

namespace llm_dist::comm {

// Tells the peers' blocks of this number that what this block sent them in call `number` is there, and waits
// for them to say so. `flags`: offset of uint64_t [blocks][kMaxPeerRanks] in every rank's memory. Ends with a
// barrier; false when the group was aborted.
__device__ inline bool meet_peers(const PeerView& peers, int64_t flags, uint64_t number) {
  __syncthreads();  // what the block's other threads have sent goes before the release, too
  bool aborted = false;
  const int peer = static_cast<int>(threadIdx.x);
  if (peer < peers.size && peer != peers.rank) {
    const int64_t flags_of_block = flags + static_cast<int64_t>(blockIdx.x) * kMaxPeerRanks * 8;
    store_release(at<uint64_t>(peers, peer, flags_of_block) + peers.rank, number);
    const uint64_t* theirs = at<uint64_t>(peers, peers.rank, flags_of_block) + peer;
    uint32_t polls = kernels::first_poll();
    while (!aborted && load_acquire(theirs) < number) aborted = gives_up(peers, polls);
  }
  return __syncthreads_or(aborted) == 0;
}

}  // namespace llm_dist::comm
