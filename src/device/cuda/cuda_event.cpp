#include "src/device/cuda/cuda_event.h"

#include "src/device/cuda/cuda_wait.h"

namespace llm_dist::device {

CudaEvent::CudaEvent(int device_index) {
  cudaSetDevice(device_index);
  cudaError_t error = cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming);
  CHECK(error == cudaSuccess, "cudaEventCreate: {}", cudaGetErrorString(error));
}

CudaEvent::~CudaEvent() { (void)cudaEventDestroy(handle_); }

Status CudaEvent::wait(Deadline deadline) {
  const CudaStream* stream = stream_.load(std::memory_order_acquire);
  // A failed stream skips records, so its events look complete: its error comes first and last.
  if (stream != nullptr) RETURN_IF_ERROR(stream->error());
  RETURN_IF_ERROR(poll_until_done(
      [&] {
        if (stream != nullptr && stream->has_failed()) return cudaSuccess;
        return cudaEventQuery(handle_);
      },
      deadline,
      "an event"));
  return stream == nullptr ? ok_status() : stream->error();
}

}  // namespace llm_dist::device
