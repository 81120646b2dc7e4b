// Lengths of random prompts, for --random-range-ratio: evenly from (1 - ratio) to (1 + ratio) times the mean,
// in pairs of one as much above it as the other is below, an odd last one the mean, so that all together have
// it exactly.
#pragma once

#include <random>
#include <string>

#include "src/base/format.h"

namespace llm_dist::launch {

// Tokens of the longest that there may be.
inline int longest_length(int mean, double ratio) { return mean + static_cast<int>(mean * ratio); }

class RandomLengths {
 public:
  // mean: tokens, at least one. ratio: of the mean, from 0 on and below 1. count: how many are drawn.
  RandomLengths(int mean, double ratio, int count)
      : mean_(mean), most_off_(longest_length(mean, ratio) - mean), left_(count) {}

  template <typename Random>
  int next(Random& random) {
    is_first_ = !is_first_;
    off_ = is_first_ ? -draw(random) : -off_;
    --left_;
    return mean_ + off_;
  }

 private:
  template <typename Random>
  int draw(Random& random) const {
    if (most_off_ == 0 || left_ == 1) return 0;
    return std::uniform_int_distribution<int>(-most_off_, most_off_)(random);
  }

  int mean_;
  int most_off_;
  int left_;
  int off_ = 0;
  bool is_first_ = false;  // of its pair
};

// "1024", or "1024 ± 90 %".
inline std::string length_text(int mean, double ratio) {
  return ratio > 0 ? format("{} ± {} %", mean, 100 * ratio) : format("{}", mean);
}

}  // namespace llm_dist::launch
