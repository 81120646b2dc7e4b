#include "comm/p2p/stream_wait.h"

#include <cuda.h>

#include "src/device/cuda/driver_function.h"

namespace llm_dist::comm {

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

cudaError_t StreamWait::make(const uint64_t* clear, cudaStream_t stream) {
  if (!stream_waits_allowed ||
      device::find_driver_function("cuStreamWaitValue64", wait_value_) != cudaSuccess)
    return cudaSuccess;
  const cudaError_t tried = wait(stream, clear, 0);
  if (tried != cudaErrorNotSupported) return tried;
  wait_value_ = nullptr;
  return cudaSuccess;
}

cudaError_t StreamWait::wait(cudaStream_t stream, const uint64_t* word, uint64_t least) const {
  const CUresult result = reinterpret_cast<decltype(&cuStreamWaitValue64)>(wait_value_)(
      stream, reinterpret_cast<CUdeviceptr>(word), least, CU_STREAM_WAIT_VALUE_GEQ);
  return static_cast<cudaError_t>(result);  // the same numbers
}

}  // namespace llm_dist::comm
