// LocalAbort: the first cause that ended a channel, as this process knows it, and a descriptor that wakes
// whoever polls.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <mutex>

#include "comm/host/fd.h"
#include "src/base/status.h"

namespace llm_dist::comm {

class LocalAbort {
 public:
  LocalAbort() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // True for the first cause.
  bool set(const Status& cause) {
    std::lock_guard lock(mutex_);
    if (is_set()) return false;
    cause_ = cause;
    set_.store(true, std::memory_order_release);
    ::eventfd_write(wake_.get(), 1);
    return true;
  }
  bool is_set() const { return set_.load(std::memory_order_acquire); }
  // Ok while not set.
  Status cause() const {
    std::lock_guard lock(mutex_);
    return cause_;
  }
  // Readable for ever once set.
  int wake_fd() const { return wake_.get(); }

 private:
  mutable std::mutex mutex_;
  Status cause_;
  std::atomic<bool> set_{false};
  Fd wake_;
};

}  // namespace llm_dist::comm
