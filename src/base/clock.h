// Time: steady, in nanoseconds or as a deadline that every blocking call takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace llm_dist {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;
using TimePoint = Clock::time_point;

inline double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}
inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
}

// More than ten years count as ten: a clock's nanoseconds end at 292.
inline Duration duration_of(double seconds) {
  constexpr double kLongest = 10 * 365.0 * 24 * 3600;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::clamp(seconds, -kLongest, kLongest)));
}

class Deadline {
 public:
  static Deadline after(Duration duration) { return Deadline(Clock::now() + duration); }
  static Deadline after_seconds(double seconds) { return after(duration_of(seconds)); }
  static Deadline at(TimePoint when) { return Deadline(when); }
  bool expired() const { return Clock::now() >= when_; }
  TimePoint when() const { return when_; }
  // Not negative.
  Duration remaining() const {
    auto left = when_ - Clock::now();
    return left > Duration::zero() ? left : Duration::zero();
  }

 private:
  explicit Deadline(TimePoint when) : when_(when) {}
  TimePoint when_;
};

}  // namespace llm_dist
