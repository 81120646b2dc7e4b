// CudaStream: a non-blocking CUDA stream whose first error stays.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <mutex>
#include <string>

#include "src/device/stream.h"

namespace llm_dist::device {

class CudaStream;

// What an op has put off, so that it goes out together with what follows it. One of the two is called, once.
class PutOffWork {
 public:
  virtual ~PutOffWork() = default;
  virtual void issue(CudaStream& stream) = 0;  // which has not failed
  virtual void drop() = 0;                     // the stream has failed or ends
};

class CudaStream : public Stream {
 public:
  CudaStream(int device_index, std::string name);
  ~CudaStream() override;  // waits for what was issued
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Device device() const override {
    return {.type = DeviceType::kCuda, .index = static_cast<int16_t>(device_index_)};
  }
  void record(Event& event) override;
  void wait(Event& event) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  void fill_zero(const Tensor& dst) override;
  void write_timestamp(int64_t* pinned_ns) override;
  Status synchronize(Deadline deadline) override;
  Status error() const override;
  Status poll() override;
  void fail(Status status) override;
  void* native() override;

  // Makes this stream's device the calling thread's and issues what was put off; false when the stream has
  // failed, and then nothing is to be issued.
  bool enter();
  // `work` is issued before anything else is, unless it is taken back first.
  void put_off(PutOffWork* work);
  void take_back() { put_off_ = nullptr; }
  cudaStream_t handle() const { return handle_; }
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  // Fails the stream when `error` is one.
  void check(cudaError_t error, const char* what);

 private:
  int device_index_;
  std::string name_;
  cudaStream_t handle_ = nullptr;
  PutOffWork* put_off_ = nullptr;
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  Status error_;
};

inline CudaStream& as_cuda(Stream& stream) {
  CHECK(stream.device().type == DeviceType::kCuda, "a CUDA op on a stream of another device");
  return static_cast<CudaStream&>(stream);
}

}  // namespace llm_dist::device
