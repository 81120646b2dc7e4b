// EventCount: waiting for a condition over memory that several processes may share.
#pragma once

#include <atomic>
#include <cstdint>

#include "src/base/clock.h"

namespace llm_dist::comm {

// Lives in shared memory; zeroed memory is a valid initial state. A waiter that dies leaves `waiters_` too
// high, which costs the notifier system calls and nothing else.
class EventCount {
 public:
  // Call after making the condition true. A system call only when somebody sleeps.
  void notify() {
    // A read-modify-write orders this with the waiter's own: either it sees what was stored before, or this
    // sees the waiter.
    if (waiters_.fetch_add(0, std::memory_order_acq_rel) != 0) wake();
  }

  // True when `condition` holds; false once the deadline passed. Spins at most `spin`, then sleeps.
  template <typename Condition>
  bool wait(Condition&& condition, Deadline deadline, Duration spin) {
    if (condition()) return true;
    if (spin > Duration::zero() && spin_until(condition, Deadline::after(spin))) return true;
    while (true) {
      waiters_.fetch_add(1, std::memory_order_acq_rel);
      uint32_t seen = epoch_.load(std::memory_order_acquire);
      bool holds = condition();
      bool in_time = holds || sleep(seen, deadline);
      waiters_.fetch_sub(1, std::memory_order_acq_rel);
      if (holds || condition()) return true;
      if (!in_time) return false;
    }
  }

 private:
  template <typename Condition>
  static bool spin_until(Condition&& condition, Deadline limit) {
    while (true) {
      for (int i = 0; i < 16; ++i) {
        if (condition()) return true;
        pause();
      }
      if (limit.expired()) return false;
    }
  }
  static void pause();
  void wake();
  // False when the deadline passed.
  bool sleep(uint32_t seen_epoch, Deadline deadline);

  std::atomic<uint32_t> epoch_{0};
  std::atomic<uint32_t> waiters_{0};
};

}  // namespace llm_dist::comm
