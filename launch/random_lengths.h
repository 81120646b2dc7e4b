// Lengths of random prompts, for --random-range-ratio: evenly from (1 - ratio) to (1 + ratio) times the mean,
// in pairs of one as much above it as the other is below, so that an even number of prompts has the mean
// exactly.
#pragma once

#include <random>

namespace llm_dist::launch {

class RandomLengths {
 public:
  // mean: tokens, at least one. ratio: of the mean, from 0 on and below 1.
  RandomLengths(int mean, double ratio) : mean_(mean), most_off_(static_cast<int>(mean * ratio)) {}

  template <typename Random>
  int next(Random& random) {
    if (most_off_ == 0) return mean_;
    is_first_ = !is_first_;
    off_ = is_first_ ? std::uniform_int_distribution<int>(-most_off_, most_off_)(random) : -off_;
    return mean_ + off_;
  }
  int longest() const { return mean_ + most_off_; }

 private:
  int mean_;
  int most_off_;
  int off_ = 0;
  bool is_first_ = false;  // of its pair
};

}  // namespace llm_dist::launch
