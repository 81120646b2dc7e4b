// StepDriver: steps of a chosen shape on every rank, without an engine thread: each rank schedules the same
// made-up sequences for itself.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "launch/sampling_flags.h"
#include "src/engine/rank_engine.h"
#include "src/sched/scheduler.h"

namespace llm_dist::launch {

struct StepShape {
  bool decode = true;      // else the first step of one prompt
  int batch = 1;           // sequences that decode
  int tokens = 128;        // of each prompt; of a decode step's contexts a little more
  double range_ratio = 0;  // of sequences that decode: RandomLengths
  DrawFlags draw;          // greedy
};

class StepDriver {
 public:
  // The rank's first steps; nobody else runs any. Expects the plain loop (no asynchronous scheduling).
  StepDriver(engine::RankEngine& rank, int64_t vocab_size);

  // Collective: runs what leads to a step of that shape, then that step, between `begin` and `end`. The
  // device is idle afterwards and what the step read still stands there. resource_exhausted when the KV cache
  // is too small for the batch.
  Status run(const StepShape& shape, const std::function<void()>& begin, const std::function<void()>& end);
  // Tokens of the prompts of the last run.
  const std::vector<int>& input_lens() const { return input_lens_; }

 private:
  Status add_sequences(const StepShape& shape, std::vector<sched::SequenceId>& ids);
  Status execute();

  engine::RankEngine& rank_;
  int64_t vocab_size_;
  sched::Scheduler scheduler_;
  sched::StepPlan plan_;
  std::vector<sched::TokenEvent> events_;
  std::vector<int> input_lens_;
  std::mt19937 random_{1};  // the same on every rank
  sched::SequenceId next_id_ = 1;
};

}  // namespace llm_dist::launch
