// MatmulTimer: times kernels whose weights come from memory, as they do in a step.
#pragma once

#include <cuda_runtime.h>

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

  // The least time of each of `count` candidates, in milliseconds; infinite for one whose issue(i) returns
  // false. Waits for the stream.
  Result<std::vector<float>> time(size_t count,
                                  cudaStream_t stream,
                                  const std::function<bool(size_t)>& issue);

 private:
  void forget_caches(cudaStream_t stream);

  void* scrub_ = nullptr;  // more than the L2 cache holds; null where memory is short: then caches stay warm
  size_t scrub_bytes_ = 0;
  std::vector<cudaEvent_t> events_;  // begin and end of each run
};

}  // namespace llm_dist::kernels
