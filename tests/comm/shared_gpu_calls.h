// The kernels of make_shared_gpu_communicator: a block a call, which waits for those of the other ranks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"
#include "comm/p2p/peer_group.h"

namespace llm_dist::comm::shared_gpu {

// In device memory, one for a group. Counts begin at 0.
struct Board {
  // Of calls that all ranks make, by rank: those it has begun, those whose tensors it needs no more, and the
  // tensors of the last one.
  uint64_t calls[kMaxPeerRanks];
  uint64_t begun[kMaxPeerRanks];
  uint64_t done[kMaxPeerRanks];
  std::byte* in[kMaxPeerRanks];
  std::byte* out[kMaxPeerRanks];
  // Of messages, by sender and receiver.
  uint64_t sends[kMaxPeerRanks][kMaxPeerRanks];     // the sender's own count
  uint64_t receives[kMaxPeerRanks][kMaxPeerRanks];  // the receiver's own count
  uint64_t sent[kMaxPeerRanks][kMaxPeerRanks];
  uint64_t received[kMaxPeerRanks][kMaxPeerRanks];
  std::byte* message[kMaxPeerRanks][kMaxPeerRanks];
};

struct Place {
  Board* board = nullptr;
  const uint32_t* aborted = nullptr;  // pinned; not 0: give up
  int rank = 0;
  int size = 0;
};

enum class Kind { kAllReduce, kReduceScatter, kAllGather, kAllToAll, kBroadcast };

struct Call {
  Kind kind = Kind::kAllReduce;
  DType dtype = DType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int64_t count = 0;  // of a part's elements; of a tensor that has no parts: of all
  std::byte* in = nullptr;
  std::byte* out = nullptr;
};

// Return the launch's error.
cudaError_t issue_call(const Place& place, const Call& call, cudaStream_t stream);
cudaError_t issue_send(const Place& place, int peer, std::byte* data, cudaStream_t stream);
cudaError_t issue_receive(const Place& place, int peer, std::byte* data, int64_t bytes, cudaStream_t stream);

}  // namespace llm_dist::comm::shared_gpu
