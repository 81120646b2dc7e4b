#include "comm/p2p/stream_wait.h"

#include <cuda.h>

namespace llm_dist::comm {
namespace {

// Null where the driver has none.
void* find_wait_value() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kFirstVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuStreamWaitValue64", &found, kFirstVersion, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuStreamWaitValue64", &found, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess) return found;
  (void)cudaGetLastError();
  return nullptr;
}

}  // namespace

bool is_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
}

cudaError_t StreamWait::make(const uint64_t* clear, cudaStream_t stream) {
  wait_value_ = stream_waits_allowed ? find_wait_value() : nullptr;
  if (!works()) return cudaSuccess;
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
