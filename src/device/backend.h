// Backend: one device of one rank: memory, streams, events, graphs. cpu/ and cuda/ implement it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"
#include "src/base/tensor.h"
#include "src/device/stream.h"

namespace llm_dist::device {

enum class MemoryKind : uint8_t {
  kDevice,  // where kernels read and write
  kPinned,  // host memory that the device copies from and to without a host-side stop
};

class Backend;

// Owns memory; hands out views. Move only.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend* backend, void* data, int64_t bytes, MemoryKind kind)
      : backend_(backend), data_(data), bytes_(bytes), kind_(kind) {}
  ~Buffer() { reset(); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    reset();
    swap(other);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  int64_t bytes() const { return bytes_; }
  Tensor view(DType dtype, std::initializer_list<int64_t> shape, int64_t byte_offset = 0) const;

 private:
  void reset();
  void swap(Buffer& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(kind_, other.kind_);
  }

  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kDevice;
};

// What a stream was told between begin and end of a capture, to be issued again as one piece.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch(Stream& stream) = 0;
};

struct MemoryInfo {
  int64_t free_bytes =
      0;  // what this process may still take (on CPU: the cgroup's limit, if lower than the machine's)
  int64_t total_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual Device device() const = 0;
  virtual std::string description() const = 0;  // "CPU Xeon …, 2 threads", "NVIDIA H200 (uuid)"
  virtual Result<Buffer> allocate(int64_t bytes, MemoryKind kind) = 0;  // zeroed; 64-byte aligned at least
  // Whether the host may read and write kDevice memory in place.
  virtual bool host_addressable() const = 0;
  virtual std::unique_ptr<Stream> make_stream(const std::string& name) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
  virtual Result<MemoryInfo> memory_info() const = 0;
  // Whether replaying a graph costs the host much less than issuing its work again, so that graphs are worth
  // their padding and the time to capture them.
  virtual bool prefers_graphs() const { return false; }
  // Records what is issued to `stream` until end_capture instead of running it. Addresses and sizes are
  // frozen.
  virtual void begin_capture(Stream& stream) = 0;
  virtual Result<std::unique_ptr<Graph>> end_capture(Stream& stream) = 0;

 private:
  friend class Buffer;
  virtual void release(void* data, int64_t bytes, MemoryKind kind) = 0;
};

}  // namespace llm_dist::device
