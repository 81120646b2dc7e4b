#include <algorithm>
#include <limits>

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/matmul_timer.h"
#include "src/device/cuda/cuda_error.h"

namespace llm_dist::kernels {
namespace {

constexpr size_t kRuns = 5;
// Longer than the 6 µs in which memory fills the processors of an H200. In steps of few rows it is 4 to 9 µs
// from the start of a product's blocks until x comes. Of 5, 8 and 12 µs: docs/kernels.md.
constexpr int64_t kPauseNanoseconds = 12000;

// Keeps the next kernel waiting, which may begin meanwhile with what it reads ahead.
__global__ void pause(int64_t cycles) {
  const int64_t begin = clock64();
  let_next_start();
  wait_for_previous();
  while (clock64() - begin < cycles) {
  }
}

// Leaves the caches with bytes that nobody wants, and that need not be written back.
__global__ void read_over(const uint4* from, int64_t count, uint32_t* sink) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  uint32_t seen = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 value = __ldcg(from + i);
    seen |= value.x | value.y | value.z | value.w;
  }
  // Never true of zeros, and the compiler cannot know.
  if (seen == 1) *sink = seen;
}

int attribute_of(cudaDeviceAttr attribute, int device) {
  int value = 0;
  (void)cudaDeviceGetAttribute(&value, attribute, device);
  return value;
}

}  // namespace

MatmulTimer::MatmulTimer() {
  int device = 0;
  (void)cudaGetDevice(&device);
  pause_cycles_ = attribute_of(cudaDevAttrClockRate, device) * kPauseNanoseconds / 1'000'000;  // of kHz
  processors_ = attribute_of(cudaDevAttrMultiProcessorCount, device);
  const int cache_bytes = attribute_of(cudaDevAttrL2CacheSize, device);
  scrub_bytes_ = static_cast<size_t>(cache_bytes) + static_cast<size_t>(cache_bytes) / 4;
  if (scrub_bytes_ > 0 && cudaMalloc(&scrub_, scrub_bytes_) != cudaSuccess) {
    scrub_ = nullptr;
    (void)cudaGetLastError();
  }
  if (scrub_ != nullptr) (void)cudaMemset(scrub_, 0, scrub_bytes_);
}

MatmulTimer::~MatmulTimer() {
  for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  if (scrub_ != nullptr) (void)cudaFree(scrub_);
}

void MatmulTimer::forget_caches(cudaStream_t stream) {
  if (scrub_ == nullptr) return;
  constexpr int kThreads = 512;
  read_over<<<static_cast<unsigned>(4 * processors_), kThreads, 0, stream>>>(
      static_cast<const uint4*>(scrub_),
      static_cast<int64_t>(scrub_bytes_ / sizeof(uint4)),
      static_cast<uint32_t*>(scrub_));
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
      pause<<<1, 1, 0, stream>>>(pause_cycles_);
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
