// The time that is written down, and the time that passes while this process lives; replaced in tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "src/base/clock.h"

namespace llm_dist::cluster {

// Microseconds since 1970. Somebody may set it.
using WallClock = std::function<int64_t()>;
// For what another process need not know.
using SteadyClock = std::function<TimePoint()>;

inline double seconds_of(int64_t us) { return static_cast<double>(us) / 1e6; }

inline int64_t system_time_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace llm_dist::cluster
