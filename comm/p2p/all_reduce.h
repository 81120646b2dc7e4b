// All-reduce kernels over peer memory: sums in rank order, in float, rounded once; in place.
#pragma once

#include <cuda_runtime.h>

#include "comm/p2p/peer_layout.h"
#include "src/base/dtype.h"
#include "src/device/peer_terms.h"

namespace llm_dist::comm {

// What a rank's kernels work with; nothing in it changes from call to call, so that graphs replay.
struct PeerView {
  std::byte* memory[kMaxPeerRanks] = {};  // by rank; this rank's own too
  device::AbortWords aborted;
  PeerLayout layout;
  int rank = 0;
  int size = 0;
  bool shares_gpu = false;  // with another rank of the group, as in tests
  bool under_mps = false;   // other processes' kernels may run on this GPU beside these
};

enum class PeerWay : uint8_t { kPackets, kOneShot, kTwoShot };

// Sums `count` elements of f32, f16 or bf16 at `data` over the ranks. Every rank makes the same calls in the
// same order, on one stream at a time; a call has no more bytes than the way's limit. Returns the launch's
// error.
cudaError_t all_reduce_sum(
    PeerWay way, const PeerView& peers, DType dtype, void* data, int64_t count, cudaStream_t stream);

// Loads every kernel that a group of `size` may use: otherwise the first launch does, which may wait for
// kernels under way, and those for this rank.
cudaError_t load_all_reduce_kernels(int size);

}  // namespace llm_dist::comm
