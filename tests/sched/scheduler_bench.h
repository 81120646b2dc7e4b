// A scheduler with the oldest step's tokens at hand, for tests of single steps.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "src/sched/scheduler.h"

namespace llm_dist::sched {

inline constexpr int32_t kEnd = 99;

inline SchedulerOptions small_options() {
  return {.num_blocks = 64,
          .block_size = 4,
          .max_num_seqs = 8,
          .max_num_batched_tokens = 32,
          .max_model_len = 64,
          .max_steps_in_flight = 2};
}

inline SequenceRequest request_of(SequenceId id,
                                  int32_t prompt_len,
                                  int32_t max_tokens,
                                  int32_t priority = 0) {
  SequenceRequest request{.id = id, .prompt = std::vector<int32_t>(static_cast<size_t>(prompt_len), 1)};
  request.sampling.max_tokens = max_tokens;
  request.sampling.end_token_ids = {kEnd};
  request.priority = priority;
  request.arrival = TimePoint(std::chrono::microseconds(id));
  return request;
}

// Tokens are 5 unless a test says otherwise.
class Bench {
 public:
  explicit Bench(const SchedulerOptions& options) : scheduler(options) {}

  void add(SequenceId id, int32_t prompt_len, int32_t max_tokens, int32_t priority = 0) {
    const Status status = scheduler.add(request_of(id, prompt_len, max_tokens, priority));
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  bool schedule() {
    if (!scheduler.schedule(plan)) return false;
    num_samples.push_back(static_cast<size_t>(plan.num_samples()));
    return true;
  }
  void retire(std::vector<int32_t> tokens) { scheduler.retire(++retired, tokens, events); }
  void retire() { retire(std::vector<int32_t>(num_samples[retired], 5)); }
  void step() {
    ASSERT_TRUE(schedule());
    while (scheduler.steps_in_flight() > 0) retire();
  }

  Scheduler scheduler;
  StepPlan plan;
  std::vector<TokenEvent> events;
  std::vector<size_t> num_samples;  // of each step
  uint64_t retired = 0;
};

inline std::vector<int32_t> counts_of(const StepPlan& plan) {
  std::vector<int32_t> counts;
  for (const SlotRun& run : plan.runs) counts.push_back(run.count);
  return counts;
}

}  // namespace llm_dist::sched
