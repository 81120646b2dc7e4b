#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/matmul_timer.h"
#include "src/device/cuda/cuda_error.h"

namespace llm_dist::kernels {
namespace {

// Of all candidates, and of those that were not slower than the fastest by more than kMaybe then.
constexpr size_t kFirstRuns = 4;
constexpr size_t kMoreRuns = 21;
constexpr float kMaybe = 1.05f;
// In steps of few rows it is 4 to 9 µs from the start of a product's blocks until x comes. Who has more on
// its way by then gains the more the longer it is: docs/kernels.md.
constexpr int64_t kPauseNanoseconds = 7000;

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

float median_of(std::vector<float> times) {
  if (times.empty()) return std::numeric_limits<float>::infinity();
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
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
  constexpr float kNever = std::numeric_limits<float>::infinity();
  std::vector<std::vector<float>> times(count);
  std::vector<size_t> running(count);
  std::iota(running.begin(), running.end(), size_t{0});
  RETURN_IF_ERROR(time_in_turns(running, kFirstRuns, stream, issue, times));
  auto least = [&](size_t i) { return times[i].empty() ? kNever : *std::ranges::min_element(times[i]); };
  float best = kNever;
  for (size_t i : running) best = std::min(best, least(i));
  std::erase_if(running, [&](size_t i) { return !(least(i) <= kMaybe * best); });
  RETURN_IF_ERROR(time_in_turns(running, kMoreRuns, stream, issue, times));
  std::vector<float> found(count, kNever);
  for (size_t i : running) found[i] = median_of(times[i]);
  return found;
}

// Adds `runs` times of each of `candidates` to its own; of one whose issue fails, none any more.
Status MatmulTimer::time_in_turns(const std::vector<size_t>& candidates,
                                  size_t runs,
                                  cudaStream_t stream,
                                  const std::function<bool(size_t)>& issue,
                                  std::vector<std::vector<float>>& times) {
  while (events_.size() < 2 * runs * candidates.size()) {
    cudaEvent_t event = nullptr;
    RETURN_IF_ERROR(device::cuda_status(cudaEventCreate(&event), "cudaEventCreate"));
    events_.push_back(event);
  }
  std::vector<bool> works(candidates.size(), true);
  // Candidates take turns, so that a clock that changes meets all of them.
  size_t next = 0;
  for (size_t run = 0; run < runs; ++run) {
    for (size_t at = 0; at < candidates.size(); ++at, next += 2) {
      if (!works[at]) continue;
      forget_caches(stream);
      RETURN_IF_ERROR(device::cuda_status(cudaEventRecord(events_[next], stream), "cudaEventRecord"));
      pause<<<1, 1, 0, stream>>>(pause_cycles_);
      works[at] = issue(candidates[at]);
      if (!works[at]) (void)cudaGetLastError();  // or the next op that looks would report it as its own
      RETURN_IF_ERROR(device::cuda_status(cudaEventRecord(events_[next + 1], stream), "cudaEventRecord"));
    }
  }
  RETURN_IF_ERROR(device::cuda_status(cudaStreamSynchronize(stream), "timing matrix products"));
  next = 0;
  for (size_t run = 0; run < runs; ++run) {
    for (size_t at = 0; at < candidates.size(); ++at, next += 2) {
      std::vector<float>& of_this = times[candidates[at]];
      if (!works[at]) {
        of_this.clear();
        continue;
      }
      float took = 0;
      RETURN_IF_ERROR(device::cuda_status(cudaEventElapsedTime(&took, events_[next], events_[next + 1]),
                                          "cudaEventElapsedTime"));
      of_this.push_back(took);
    }
  }
  return ok_status();
}

}  // namespace llm_dist::kernels
