// OpenRequests: counts the requests in progress, so that draining can wait for the last one.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "src/base/clock.h"

namespace llm_dist::server {

class OpenRequests {
 public:
  // A request is in progress as long as its ticket lives. This object outlives its tickets.
  using Ticket = std::shared_ptr<void>;
  Ticket enter() {
    std::lock_guard lock(mutex_);
    ++count_;
    return Ticket(nullptr, [this](void*) { leave(); });
  }
  // False when some are still in progress at the deadline.
  bool wait_until_none(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return none_.wait_until(lock, deadline.when(), [&] { return count_ == 0; });
  }

 private:
  void leave() {
    std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable none_;
  int64_t count_ = 0;
};

}  // namespace llm_dist::server
