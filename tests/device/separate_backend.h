// SeparateBackend: the CPU as a device whose memory counts as one that the host cannot write to, which counts
// what is allocated and can refuse it.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::device {

class SeparateBackend final : public Backend {
 public:
  struct Options {
    CpuBackendOptions cpu;
    int most_pinned = 1 << 30;         // buffers of pinned memory; more are refused
    std::function<void(int)> on_pin;   // with how many buffers of pinned memory there are then
    std::function<void()> on_release;  // of pinned memory, while it is still there
  };
  SeparateBackend() : SeparateBackend(Options{}) {}
  explicit SeparateBackend(Options options)
      : options_(std::move(options)), cpu_(make_cpu_backend(options_.cpu)) {}

  int pinned_buffers() const { return pinned_; }

  Device device() const override { return cpu_->device(); }
  std::string description() const override { return "CPU with memory of its own"; }
  Result<Buffer> allocate(int64_t bytes, MemoryKind kind) override {
    if (kind == MemoryKind::kPinned && pinned_++ >= options_.most_pinned)
      return resource_exhausted("no more pinned memory");
    if (kind == MemoryKind::kPinned && options_.on_pin) options_.on_pin(pinned_);
    const auto size = static_cast<size_t>((bytes + 63) / 64 * 64);
    void* data = std::aligned_alloc(64, size);
    std::memset(data, 0, size);
    return Buffer(this, data, bytes, kind);
  }
  bool host_addressable() const override { return false; }
  std::unique_ptr<Stream> make_stream(const std::string& name) override { return cpu_->make_stream(name); }
  std::unique_ptr<Event> make_event() override { return cpu_->make_event(); }
  Result<MemoryInfo> memory_info() const override { return cpu_->memory_info(); }
  void begin_capture(Stream& stream) override { cpu_->begin_capture(stream); }
  Result<std::unique_ptr<Graph>> end_capture(Stream& stream) override { return cpu_->end_capture(stream); }

 private:
  void release(void* data, int64_t, MemoryKind kind) override {
    if (kind == MemoryKind::kPinned && options_.on_release) options_.on_release();
    std::free(data);
  }

  Options options_;
  std::unique_ptr<Backend> cpu_;
  std::atomic<int> pinned_ = 0;
};

}  // namespace llm_dist::device
