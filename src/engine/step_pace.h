// StepPace: how long a step may be expected to take, by its tokens.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace llm_dist::engine {

// Steps of 2^k to 2^(k+1) − 1 tokens count as of one size, and of each size the slowest of late counts. A
// decode says little of a prompt that is a thousand times as long, which is why one figure for all steps
// would not do.
class StepPace {
 public:
  void note(int64_t tokens, double seconds) {
    double& slowest = slowest_[size_of(tokens)];
    slowest = std::max(kKept * slowest, seconds);
  }

  // Of a step that computes this many tokens. From the nearest size that has been seen: a smaller one, as
  // though time grew with the tokens, which is the most that it does; else a larger one as it is. 0 where no
  // step was seen.
  double expected_seconds(int64_t tokens) const {
    const size_t wanted = size_of(tokens);
    for (size_t size = wanted + 1; size-- > 0;)
      if (slowest_[size] > 0) return slowest_[size] * static_cast<double>(int64_t{1} << (wanted - size));
    for (size_t size = wanted + 1; size < kSizes; ++size)
      if (slowest_[size] > 0) return slowest_[size];
    return 0;
  }

 private:
  static constexpr size_t kSizes = 32;
  // Of what was, with each step of that size: a host that stood still for a minute is forgotten after some
  // hundred.
  static constexpr double kKept = 0.98;
  static size_t size_of(int64_t tokens) {
    const auto bits =
        static_cast<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(tokens, 1))));
    return std::min(bits - 1, kSizes - 1);
  }

  std::array<double, kSizes> slowest_{};
};

}  // namespace llm_dist::engine
