// CpuStream: a bounded ring of tasks and the thread that runs them in order. Issuing copies a small,
// trivially copyable closure into the ring: no allocation.
#pragma once

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "src/device/backend.h"
#include "src/device/stream.h"

namespace llm_dist::device {

class CpuEvent;

// One closure, by value.
struct CpuTask {
  static constexpr size_t kBytes = 640;
  using Run = void (*)(void* closure);

  Run run = nullptr;
  alignas(16) std::byte closure[kBytes];

  template <typename F>
  static void emplace(CpuTask& task, const F& f) {
    static_assert(std::is_trivially_copyable_v<F>,
                  "a task's closure is copied as bytes: capture views, not owners");
    static_assert(sizeof(F) <= kBytes);
    std::memcpy(task.closure, &f, sizeof f);
    task.run = [](void* closure) { (*static_cast<F*>(closure))(); };
  }
};

struct CpuStreamOptions {
  std::string name;
  size_t capacity = 2048;  // tasks issued and not yet run; issuing waits beyond that
  // Called on the stream's thread before each task with its number, for tests that inject delays.
  std::function<void(uint64_t)> before_task;
};

class CpuStream : public Stream {
 public:
  explicit CpuStream(CpuStreamOptions options);
  ~CpuStream() override;  // runs what was issued, then joins
  CpuStream(const CpuStream&) = delete;
  CpuStream& operator=(const CpuStream&) = delete;

  // Issues f() to run on the stream's thread. Skipped when the stream has failed.
  template <typename F>
  void enqueue(const F& f) {
    if (capturing_ != nullptr) {
      CpuTask::emplace(capturing_->emplace_back(), f);
      return;
    }
    std::unique_lock lock(mutex_);
    CpuTask::emplace(next_slot(lock), f);
    commit(lock);
  }
  void enqueue(const CpuTask& task);

  Device device() const override { return {}; }
  void record(Event& event) override;
  void wait(Event& event) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  void fill_zero(const Tensor& dst) override;
  void write_timestamp(int64_t* pinned_ns) override {
    enqueue([pinned_ns] { *pinned_ns = now_ns(); });
  }
  Status synchronize(Deadline deadline) override;
  Status error() const override;
  void fail(Status status) override;
  void* native() override { return nullptr; }

  void begin_capture();
  std::vector<CpuTask> end_capture();

 private:
  CpuTask& next_slot(std::unique_lock<std::mutex>& lock);
  void commit(std::unique_lock<std::mutex>& lock);
  void run_tasks();

  CpuStreamOptions options_;
  std::unique_ptr<std::vector<CpuTask>> capturing_;
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable progressed_;
  std::vector<CpuTask> ring_;
  uint64_t issued_ = 0;
  uint64_t done_ = 0;
  bool worker_waits_ = false;
  bool issuer_waits_ = false;
  bool stopping_ = false;
  Status error_;
  std::thread worker_;
};

inline CpuStream& as_cpu(Stream& stream) {
  CHECK(stream.device().type == DeviceType::kCpu, "a CPU op on a stream of another device");
  return static_cast<CpuStream&>(stream);
}

}  // namespace llm_dist::device
