// ThreadGroup: where the threads that are the ranks of one group meet. Each publishes its call; when all are
// there, every rank reads the others' memory directly.
#pragma once

#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/cpu_communicator.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

class ThreadGroup {
 public:
  ThreadGroup(std::string name, std::vector<int> world_ranks);

  int size() const { return static_cast<int>(world_ranks_.size()); }

  // Publishes `call` and waits for every other rank's. After ok, calls() can be read, and the ranks' memory,
  // until leave(), which each rank must then call. All of them get ok, or none does: then an error stands,
  // calls that differ being one.
  Status meet(int rank, const CollectiveCall& call, Deadline deadline);
  std::span<const CollectiveCall> calls() const { return calls_; }
  // Waits until every rank is done with the others' memory. No error ends it: the peers are copying, not
  // waiting.
  void leave();

  // Returns when the receiver has copied.
  Status send(int rank, const CollectiveCall& call, Deadline deadline);
  Status recv(int rank, const CollectiveCall& call, Deadline deadline);

  Status error() const;
  void abort(Status cause);

 private:
  enum class MailState : uint8_t { kEmpty, kPosted, kTaken, kCopied };
  struct Mailbox {
    MailState state = MailState::kEmpty;
    CollectiveCall call;
  };

  Mailbox& mailbox(int from, int to);
  // The first error, set to `cause` unless one stands; wakes all.
  Status fail(Status cause);
  std::string missing_ranks() const;
  Status compare_calls() const;
  template <typename Done>
  Status wait(std::unique_lock<std::mutex>& lock, Deadline deadline, Done done);

  const std::string name_;
  const std::vector<int> world_ranks_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status error_;
  std::vector<CollectiveCall> calls_;
  std::vector<bool> present_;
  std::vector<Mailbox> mailboxes_;  // from × size + to
  int num_present_ = 0;
  int num_left_ = 0;

  uint64_t meetings_ = 0;
  uint64_t partings_ = 0;
};

}  // namespace llm_dist::comm
