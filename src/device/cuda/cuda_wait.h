// Waiting for the device with a deadline: CUDA's own waits have none.
#pragma once

#include <algorithm>
#include <thread>

#include "src/base/clock.h"
#include "src/device/cuda/cuda_error.h"

namespace llm_dist::device {

// Calls query() until it is no longer cudaErrorNotReady: without a pause at first, since most waits are
// short, then at growing distances, so that a long one does not hold a core.
template <typename Query>
Status poll_until_done(Query query, Deadline deadline, std::string_view what) {
  constexpr int kEagerPolls = 200;
  constexpr auto kLongestPause = std::chrono::microseconds(200);
  auto pause = std::chrono::microseconds(5);
  for (int polls = 0;; ++polls) {
    cudaError_t state = query();
    if (state != cudaErrorNotReady) return cuda_status(state, what);
    if (polls < kEagerPolls) continue;
    if (deadline.expired()) return deadline_exceeded(format("{} was not reached in time", what));
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace llm_dist::device
