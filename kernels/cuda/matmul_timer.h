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
  // The mean time of what issue() issues over so long a run of it that the GPU's power, not its highest
  // clock, decides; `about`: the time of one, by which it is told how often. In milliseconds. Waits for the
  // stream.
  Result<float> time_hot(float about, cudaStream_t stream, const std::function<bool()>& issue);

 private:
  Status make_events(size_t count);
  void forget_caches(cudaStream_t stream);

  void* scrub_ = nullptr;  // more than the L2 cache holds; null where memory is short: then caches stay warm
  size_t scrub_bytes_ = 0;
  std::vector<cudaEvent_t> events_;  // begin and end of each run
};

}  // namespace llm_dist::kernels
