// CpuEvent: counts the records issued and the records reached.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "src/device/event.h"

namespace llm_dist::device {

class Stream;

class CpuEvent : public Event {
 public:
  bool complete() const override { return reached_.load(std::memory_order_acquire) >= recorded(); }
  Status wait(Deadline deadline) override { return wait_for(recorded(), deadline); }

  uint64_t recorded() const { return recorded_.load(std::memory_order_acquire); }
  uint64_t begin_record() { return recorded_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  void finish_record(uint64_t generation);
  void set_stream(const Stream* stream) { stream_.store(stream, std::memory_order_release); }
  // Waits until `generation` is reached or the recording stream fails.
  Status wait_for(uint64_t generation, Deadline deadline);

 private:
  std::atomic<uint64_t> recorded_{0};
  std::atomic<uint64_t> reached_{0};
  std::atomic<const Stream*> stream_{nullptr};
  std::mutex mutex_;
  std::condition_variable reached_changed_;
};

}  // namespace llm_dist::device
