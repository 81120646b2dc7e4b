#include "src/device/cpu/cpu_stream.h"

#include <pthread.h>

#include "src/device/cpu/cpu_event.h"

namespace llm_dist::device {

CpuStream::CpuStream(CpuStreamOptions options) : options_(std::move(options)), ring_(options_.capacity) {
  worker_ = std::thread([this] { run_tasks(); });
  pthread_setname_np(worker_.native_handle(), options_.name.substr(0, 15).c_str());
}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  not_empty_.notify_all();
  worker_.join();
}

CpuTask& CpuStream::next_slot(std::unique_lock<std::mutex>& lock) {
  while (issued_ - done_ == ring_.size()) {
    issuer_waits_ = true;
    progressed_.wait(lock);
  }
  issuer_waits_ = false;
  return ring_[issued_ % ring_.size()];
}

void CpuStream::commit(std::unique_lock<std::mutex>& lock) {
  ++issued_;
  bool wake = worker_waits_;
  lock.unlock();
  if (wake) not_empty_.notify_one();
}

void CpuStream::enqueue(const CpuTask& task) {
  if (capturing_ != nullptr) {
    capturing_->push_back(task);
    return;
  }
  std::unique_lock lock(mutex_);
  next_slot(lock) = task;
  commit(lock);
}

void CpuStream::run_tasks() {
  std::unique_lock lock(mutex_);
  while (true) {
    while (issued_ == done_ && !stopping_) {
      worker_waits_ = true;
      not_empty_.wait(lock);
    }
    worker_waits_ = false;
    if (issued_ == done_) return;
    CpuTask& task = ring_[done_ % ring_.size()];
    bool run = error_.ok();
    lock.unlock();
    if (run) {
      if (options_.before_task) options_.before_task(done_);
      task.run(task.closure);
    }
    lock.lock();
    ++done_;
    if (issuer_waits_ || done_ == issued_) progressed_.notify_all();
  }
}

void CpuStream::record(Event& event) {
  CHECK(capturing_ == nullptr, "an event recorded inside a captured graph");
  auto& cpu_event = static_cast<CpuEvent&>(event);
  uint64_t generation = cpu_event.begin_record();
  cpu_event.set_stream(
      this);  // whoever waits looks at this stream's error: a failed stream reaches no record
  enqueue([&cpu_event, generation] { cpu_event.finish_record(generation); });
}

void CpuStream::wait(Event& event) {
  auto& cpu_event = static_cast<CpuEvent&>(event);
  uint64_t generation = cpu_event.recorded();
  enqueue([this, &cpu_event, generation] {
    Status status = cpu_event.wait_for(generation, Deadline::after_seconds(3600));
    if (!status.ok()) fail(std::move(status));
  });
}

void CpuStream::copy(const Tensor& dst, const Tensor& src) {
  CHECK(dst.is_contiguous() && src.is_contiguous(), "{} <- {}", dst.to_string(), src.to_string());
  CHECK_EQ(dst.bytes(), src.bytes());
  enqueue([to = dst.data, from = src.data, bytes = static_cast<size_t>(dst.bytes())] {
    if (bytes != 0) std::memcpy(to, from, bytes);
  });
}

void CpuStream::fill_zero(const Tensor& dst) {
  CHECK(dst.is_contiguous(), "{}", dst.to_string());
  enqueue([to = dst.data, bytes = static_cast<size_t>(dst.bytes())] {
    if (bytes != 0) std::memset(to, 0, bytes);
  });
}

Status CpuStream::synchronize(Deadline deadline) {
  std::unique_lock lock(mutex_);
  uint64_t target = issued_;
  // After an error too: what was issued is skipped, and the caller may free what it refers to.
  bool reached = progressed_.wait_until(lock, deadline.when(), [&] { return done_ >= target; });
  if (!error_.ok()) return error_;
  return reached ? ok_status() : deadline_exceeded("stream " + options_.name + " did not drain in time");
}

Status CpuStream::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void CpuStream::fail(Status status) {
  {
    std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = std::move(status);
  }
  progressed_.notify_all();
}

void CpuStream::begin_capture() {
  CHECK(capturing_ == nullptr, "a capture inside a capture");
  capturing_ = std::make_unique<std::vector<CpuTask>>();
}

std::vector<CpuTask> CpuStream::end_capture() {
  CHECK(capturing_ != nullptr, "end_capture without begin_capture");
  auto tasks = std::move(*capturing_);
  capturing_.reset();
  return tasks;
}

}  // namespace llm_dist::device
