// Receives that wait without a kernel. A kernel that waits holds room on a multiprocessor, and kernels with a
// block on each of them, as products have, then take twice as long. So a stream waits for the word that the
// sender has begun, which takes nothing but the stream, and the receiving kernel follows.
//
// The word says when to look, no more: what has come, the kernel finds out for itself.
#pragma once

#include <array>
#include <atomic>

#include "comm/p2p/all_reduce.h"
#include "comm/p2p/peer_group.h"
#include "comm/p2p/stream_wait.h"

namespace llm_dist::comm {

class MessageGates {
 public:
  MessageGates() = default;
  MessageGates(const MessageGates&) = delete;
  MessageGates& operator=(const MessageGates&) = delete;

  // Of the calling thread's device, and this rank's memory in `view`, which is clear.
  cudaError_t make(const PeerView& view);
  // Where streams cannot wait for words, gates do not work: kernels wait as they would without.
  bool work() const { return stream_wait_.works(); }
  // Gives back what make took. Not after open_all, behind which work may be on its way.
  void close();

  // Of the next message to `peer`: what the sender says when it begins. Messages of graphs have none, since
  // nobody counts their replays: 0. So a message is in a graph on both sides, or on neither.
  uint64_t number_to(int peer, cudaStream_t stream);
  // `stream` goes on when the next message from `peer` has begun.
  cudaError_t wait_for(int peer, cudaStream_t stream);
  // Nobody waits any more. Any thread.
  void open_all();

 private:
  // The word that messages from `peer` have begun, in this rank's memory.
  const uint64_t* begun(int peer) const;

  const PeerView* view_ = nullptr;
  int device_ = 0;
  StreamWait stream_wait_;
  cudaStream_t opener_ = nullptr;       // no other's work is in front of it
  uint64_t* beyond_numbers_ = nullptr;  // pinned, one for each peer
  std::atomic<bool> opened_{false};     // for good
  std::array<uint64_t, kMaxPeerRanks> sent_{};
  std::array<uint64_t, kMaxPeerRanks> received_{};
};

}  // namespace llm_dist::comm
