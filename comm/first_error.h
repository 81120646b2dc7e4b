// FirstError: the error that ends a group, set once, read by every loop that waits. Any thread.
#pragma once

#include <atomic>
#include <mutex>

#include "src/base/status.h"

namespace llm_dist::comm {

class FirstError {
 public:
  // False when an earlier error stands; that one stays.
  bool set(Status status) {
    CHECK(!status.ok(), "an ok status ends nothing");
    std::lock_guard lock(mutex_);
    if (failed_.load(std::memory_order_relaxed)) return false;
    status_ = std::move(status);
    failed_.store(true, std::memory_order_release);
    return true;
  }
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Status get() const {
    if (!failed()) return {};
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Status status_;
};

}  // namespace llm_dist::comm
