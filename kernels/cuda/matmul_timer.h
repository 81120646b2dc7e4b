// MatmulTimer: times kernels of products as they run in a step: weights come from memory, and a kernel that
// can begins to read them before the one in front of it has ended.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::kernels {

class MatmulTimer {
 public:
  // On the calling thread's device.
  MatmulTimer();
  ~MatmulTimer();
  MatmulTimer(const MatmulTimer&) = delete;
  MatmulTimer& operator=(const MatmulTimer&) = delete;

  // The median time of each of `count` candidates and a wait in front of it that is the same for all, in
  // milliseconds; infinite for one whose issue(i) returns false, and for those that are soon seen to be
  // slower than others. Waits for the stream.
  Result<std::vector<float>> time(size_t count,
                                  cudaStream_t stream,
                                  const std::function<bool(size_t)>& issue);

 private:
  void forget_caches(cudaStream_t stream);
  Status time_in_turns(const std::vector<size_t>& candidates,
                       size_t runs,
                       cudaStream_t stream,
                       const std::function<bool(size_t)>& issue,
                       std::vector<std::vector<float>>& times);

  int64_t pause_cycles_ = 0;
  int processors_ = 0;
  void* scrub_ = nullptr;  // more than the L2 cache holds; null where memory is short: then caches stay warm
  size_t scrub_bytes_ = 0;
  std::vector<cudaEvent_t> events_;  // begin and end of each run
};

}  // namespace llm_dist::kernels
