// CudaEvent: an event without timing; it remembers the stream that records it, whose error a wait returns.
#pragma once

#include <cuda_runtime.h>

#include <atomic>

#include "src/device/cuda/cuda_stream.h"
#include "src/device/event.h"

namespace llm_dist::device {

class CudaEvent : public Event {
 public:
  explicit CudaEvent(int device_index);
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool complete() const override { return cudaEventQuery(handle_) == cudaSuccess; }
  Status wait(Deadline deadline) override;

  cudaEvent_t handle() const { return handle_; }
  // That of the stream that recorded it last, if any did.
  Status error() const;
  void set_stream(const CudaStream* stream) { stream_.store(stream, std::memory_order_release); }

 private:
  cudaEvent_t handle_ = nullptr;
  std::atomic<const CudaStream*> stream_{nullptr};
};

}  // namespace llm_dist::device
