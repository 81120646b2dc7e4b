#include "src/device/cuda/cuda_event.h"

#include "src/device/cuda/cuda_wait.h"

namespace llm_dist::device {

CudaEvent::CudaEvent(int device_index) {
  cudaSetDevice(device_index);
  cudaError_t error = cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming);
  CHECK(error == cudaSuccess, "cudaEventCreate: {}", cudaGetErrorString(error));
}

CudaEvent::~CudaEvent() { (void)cudaEventDestroy(handle_); }

Status CudaEvent::error() const {
  const CudaStream* stream = stream_.load(std::memory_order_acquire);
  return stream == nullptr ? ok_status() : stream->error();
}

Status CudaEvent::wait(Deadline deadline) {
  const CudaStream* stream = stream_.load(std::memory_order_acquire);
  // A failed stream skips records, so its events look complete: its error comes first and last.
  RETURN_IF_ERROR(error());
  RETURN_IF_ERROR(poll_until_done(
      [&] {
        if (stream != nullptr && stream->has_failed()) return cudaSuccess;
        return cudaEventQuery(handle_);
      },
      deadline,
      "an event"));
  return error();
}

}  // namespace llm_dist::device
