#include "comm/host/event_count.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <ctime>

namespace llm_dist::comm {
namespace {

timespec to_timespec(TimePoint when) {
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
  if (ns < 0) ns = 0;
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

void EventCount::pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void EventCount::wake() {
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  // Not FUTEX_PRIVATE: the word is found by its place in the shared file, also across processes.
  syscall(SYS_futex, &epoch_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool EventCount::sleep(uint32_t seen_epoch, Deadline deadline) {
  // The bitset form takes an absolute time on CLOCK_MONOTONIC, which is the steady clock.
  timespec until = to_timespec(deadline.when());
  long rc =
      syscall(SYS_futex, &epoch_, FUTEX_WAIT_BITSET, seen_epoch, &until, nullptr, FUTEX_BITSET_MATCH_ANY);
  return !(rc == -1 && errno == ETIMEDOUT);
}

}  // namespace llm_dist::comm
