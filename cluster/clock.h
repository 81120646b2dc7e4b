// The time that is written down: wall clock, replaced in tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

namespace llm_dist::cluster {

// Microseconds since 1970.
using WallClock = std::function<int64_t()>;

inline double seconds_of(int64_t us) { return static_cast<double>(us) / 1e6; }

inline int64_t system_time_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace llm_dist::cluster
