// A rank's memory for its peers and the view of theirs, through CUDA IPC handles, or plain pointers where
// ranks are threads of one process.
#pragma once

#include <atomic>
#include <vector>

#include "comm/p2p/all_reduce.h"
#include "comm/p2p/message_gates.h"
#include "comm/p2p/peer_group.h"

namespace llm_dist::comm {

// What a group's communicator works with, and gives back at its end.
class PeerResources {
 public:
  explicit PeerResources(const PeerGroup& group) : group_(group) {}
  ~PeerResources();
  PeerResources(const PeerResources&) = delete;
  PeerResources& operator=(const PeerResources&) = delete;

  Result<std::string> prepare();
  Status open(std::span<const std::string> cards);
  const PeerGroup& group() const { return group_; }
  const PeerView& view() const { return view_; }
  MessageGates& gates() { return gates_; }
  // Communicator::stop_waiting
  void stop_waiting() { gates_.open_all(); }
  // Ends every kernel that waits, and leaves the memory to the end of the process: they may still use it.
  // Any thread.
  void abort();

 private:
  Status take_memory();
  Status open_peer(int peer, const std::string& card);

  PeerGroup group_;
  PeerView view_;
  MessageGates gates_;           // of groups that have messages
  uint32_t* aborted_ = nullptr;  // pinned; the kernels look at it
  std::atomic<bool> abandoned_{false};
  std::vector<void*> mapped_;
};

// See PeerMemory.
std::unique_ptr<PeerMemory> make_peer_memory(const PeerGroup& group);

}  // namespace llm_dist::comm
