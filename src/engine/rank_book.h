// RankBook: rank 0's record of what the ranks measure, and what it says about them together.
#pragma once

#include <cstdint>
#include <vector>

#include "src/engine/engine_stats.h"

namespace llm_dist::engine {

// Everything is taken over the steps between a rank's last two reports. Allocates at construction only.
class RankBook {
 public:
  explicit RankBook(int world_size);

  // The meters of `rank`, as they stand now.
  void note(int rank, const RankMeters& meters);
  // Step `step` has been collected; until then steps were in flight for `active_seconds` in all.
  void note_active(uint64_t step, double active_seconds);

  const std::vector<RankMeters>& ranks() const { return latest_; }
  // Mean own time of a step (its device time less the collectives in it) of the slowest rank less that of the
  // fastest: what the others wait for.
  double step_skew_seconds() const;
  // Mean share of the active time in which a rank's device ran no step. With one stage it is what lies
  // between steps.
  double bubble_fraction() const;

 private:
  struct Window {
    bool known = false;
    double own_seconds = 0;  // of a step
    double idle_fraction = 0;
  };
  double active_between(uint64_t after, uint64_t through) const;

  std::vector<RankMeters> latest_;
  std::vector<Window> windows_;
  std::vector<double> active_seconds_;  // by step, of the latest
  uint64_t last_collected_ = 0;
};

}  // namespace llm_dist::engine
