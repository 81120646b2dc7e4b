// EngineStats: plain numbers about the engine; server names them as metrics.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "src/sched/scheduler.h"

namespace llm_dist::engine {

// Counts of durations in buckets whose upper bounds double from 2^-14 s (61 µs) on; the last is unbounded.
struct DurationHistogram {
  static constexpr int kBuckets = 24;
  std::array<uint64_t, kBuckets> counts{};
  uint64_t count = 0;
  double sum_seconds = 0.0;

  static double upper_bound_seconds(int bucket) {
    return 0x1p-14 * static_cast<double>(uint64_t{1} << bucket);
  }
  void add(double seconds) {
    int bucket = 0;
    while (bucket < kBuckets - 1 && seconds > upper_bound_seconds(bucket)) ++bucket;
    ++counts[static_cast<size_t>(bucket)];
    ++count;
    sum_seconds += seconds;
  }
};

struct CollectiveStats {
  uint64_t calls = 0;
  double seconds = 0;  // waiting for peers included
};
// By comm::Collective.
inline constexpr std::array<std::string_view, 7> kCollectiveNames = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send", "recv"};
inline constexpr size_t kNumCollectives = kCollectiveNames.size();

// What one rank has measured since it started. Plain bytes: so they travel to rank 0.
struct RankMeters {
  uint64_t through_step = 0;       // the last step that is in it
  DurationHistogram step_seconds;  // device time, from a step's inputs to its last op
  std::array<CollectiveStats, kNumCollectives> collectives{};  // without calls where they are not timed
};

struct EngineStats {
  sched::SchedulerStats scheduler;
  uint64_t steps = 0;
  std::vector<RankMeters> ranks;      // by rank; up to a second old
  double rank_step_skew_seconds = 0;  // see RankBook
  double pipeline_bubble_fraction = 0;
  DurationHistogram step_seconds;  // from issue to collection
  int64_t last_progress_ns = 0;    // now_ns() of the last collected step
  double expected_step_seconds =
      0;                      // the most that a step in flight may take, by StepPace; 0: none is, or unknown
  double kv_waste_sum = 0.0;  // of kv_waste() after each step with anything allocated
  uint64_t kv_waste_steps = 0;
  bool failed = false;

  double mean_kv_waste() const {
    return kv_waste_steps == 0 ? 0.0 : kv_waste_sum / static_cast<double>(kv_waste_steps);
  }

  // Allocated KV bytes that hold no token, as a fraction of the allocated ones.
  double kv_waste() const {
    return scheduler.allocated_kv_tokens == 0 ? 0.0
                                              : 1.0 - static_cast<double>(scheduler.used_kv_tokens) /
                                                          static_cast<double>(scheduler.allocated_kv_tokens);
  }
};

// The step thread writes after each step, anyone reads.
class StatsBoard {
 public:
  void write(const EngineStats& stats) {
    std::lock_guard lock(mutex_);
    stats_ = stats;
  }
  EngineStats read() const {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  template <typename Change>
  void change(Change&& change) {
    std::lock_guard lock(mutex_);
    change(stats_);
  }

 private:
  mutable std::mutex mutex_;
  EngineStats stats_;
};

}  // namespace llm_dist::engine
