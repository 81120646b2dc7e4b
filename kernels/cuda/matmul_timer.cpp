#include "kernels/cuda/matmul_timer.h"

#include <algorithm>
#include <limits>

#include "src/device/cuda/cuda_error.h"

namespace llm_dist::kernels {
namespace {
constexpr size_t kRuns = 3;
}

MatmulTimer::MatmulTimer() {
  int device = 0;
  int cache_bytes = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&cache_bytes, cudaDevAttrL2CacheSize, device);
  scrub_bytes_ = static_cast<size_t>(cache_bytes) + static_cast<size_t>(cache_bytes) / 4;
  if (scrub_bytes_ > 0 && cudaMalloc(&scrub_, scrub_bytes_) != cudaSuccess) {
    scrub_ = nullptr;
    (void)cudaGetLastError();
  }
}

MatmulTimer::~MatmulTimer() {
  for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  if (scrub_ != nullptr) (void)cudaFree(scrub_);
}

void MatmulTimer::forget_caches(cudaStream_t stream) {
  if (scrub_ != nullptr) (void)cudaMemsetAsync(scrub_, 0, scrub_bytes_, stream);
}

Result<std::vector<float>> MatmulTimer::time(size_t count,
                                             cudaStream_t stream,
                                             const std::function<bool(size_t)>& issue) {
  while (events_.size() < 2 * kRuns * count) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(device::cuda_status(cudaEventCreate(&event), "cudaEventCreate"));
    events_.push_back(event);
  }
  std::vector<bool> works(count, true);
  // Candidates take turns, so that a clock that changes meets all of them.
  for (size_t run = 0; run < kRuns; ++run) {
    for (size_t i = 0; i < count; ++i) {
      if (!works[i]) continue;
      const size_t pair = 2 * (run * count + i);
      forget_caches(stream);
      RETURN_IF_ERROR(device::cuda_status(cudaEventRecord(events_[pair], stream), "cudaEventRecord"));
      works[i] = issue(i);
      RETURN_IF_ERROR(device::cuda_status(cudaEventRecord(events_[pair + 1], stream), "cudaEventRecord"));
    }
  }
  RETURN_IF_ERROR(device::cuda_status(cudaStreamSynchronize(stream), "timing matrix products"));
  std::vector<float> best(count, std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < count; ++i) {
    for (size_t run = 0; run < kRuns && works[i]; ++run) {
      const size_t pair = 2 * (run * count + i);
      float took = 0;
      RETURN_IF_ERROR(device::cuda_status(cudaEventElapsedTime(&took, events_[pair], events_[pair + 1]),
                                          "cudaEventElapsedTime"));
      best[i] = std::min(best[i], took);
    }
  }
  return best;
}

}  // namespace llm_dist::kernels
