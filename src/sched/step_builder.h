// The step being scheduled: what has been picked so far, and what is left of the token budget. It writes the
// plan's operations in the order that the plan promises.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/sched/sequence.h"
#include "src/sched/step_plan.h"

namespace llm_dist::sched {

class StepBuilder {
 public:
  struct Run {
    Sequence* sequence = nullptr;
    int32_t begin = 0;
    int32_t count = 0;
    bool samples = false;
    int32_t first_block = 0;  // in new_blocks_
    int32_t num_new_blocks = 0;
    int32_t num_scores = 0;
  };

  // Room for this many runs and blocks, so that no step allocates.
  StepBuilder(int32_t max_runs, int32_t max_new_blocks);

  // row_budget: rows of logits.
  void reset(int32_t token_budget, int32_t row_budget);
  bool empty() const { return runs_.empty(); }
  int32_t num_runs() const { return static_cast<int32_t>(runs_.size()); }
  int32_t tokens_left() const { return tokens_left_; }
  int32_t rows_left() const { return rows_left_; }

  void add_start(Sequence& sequence) { starts_.push_back(&sequence); }
  void add_new_block(int32_t block) { new_blocks_.push_back(block); }
  // The last num_new_blocks of add_new_block() belong to this run.
  void add_run(Run run);
  void needs_tokens_of(uint64_t step);

  // Runs of one token come first, whatever the order they were added in. Call it once, before write().
  void order_runs();
  std::span<const Run> runs() const { return runs_; }
  // Appends starts, runs, tokens and blocks to `plan`.
  void write(StepPlan& plan) const;

 private:
  std::vector<Sequence*> starts_;
  std::vector<Run> runs_;
  std::vector<Run> chunks_;  // scratch of order_runs()
  std::vector<int32_t> new_blocks_;
  int32_t tokens_left_ = 0;
  int32_t rows_left_ = 0;
  uint64_t needs_tokens_of_ = 0;
};

}  // namespace llm_dist::sched
