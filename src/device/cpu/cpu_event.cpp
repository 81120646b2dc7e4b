#include "src/device/cpu/cpu_event.h"

#include "src/device/stream.h"

namespace llm_dist::device {

void CpuEvent::finish_record(uint64_t generation) {
  // All of it under the lock: who has waited may destroy the event at once.
  std::lock_guard lock(mutex_);
  if (generation > reached_.load(std::memory_order_relaxed))
    reached_.store(generation, std::memory_order_release);
  reached_changed_.notify_all();
}

Status CpuEvent::wait_for(uint64_t generation, Deadline deadline) {
  // The recording stream may fail while we wait and then never reaches the record: look at its error from
  // time to time.
  constexpr auto kErrorPoll = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex_);
  while (reached_.load(std::memory_order_acquire) < generation) {
    const Stream* stream = stream_.load(std::memory_order_acquire);
    if (stream != nullptr) {
      lock.unlock();
      Status error = stream->error();
      lock.lock();
      if (!error.ok()) return error;
    }
    if (deadline.expired()) return deadline_exceeded("an event was not reached in time");
    reached_changed_.wait_until(lock, std::min(deadline.when(), Clock::now() + kErrorPoll), [&] {
      return reached_.load(std::memory_order_acquire) >= generation;
    });
  }
  return ok_status();
}

}  // namespace llm_dist::device
