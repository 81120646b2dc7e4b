// The scheduler's configuration, under the names of the command-line flags.
#pragma once

#include <cstdint>

#include "src/base/status.h"

namespace llm_dist::sched {

enum class SchedulingPolicy : uint8_t {
  kFcfs,      // by arrival
  kPriority,  // by (priority, arrival), lower first
};

struct SchedulerOptions {
  int32_t num_blocks = 0;
  int32_t block_size = 16;                // tokens
  int32_t max_num_seqs = 256;             // slots
  int32_t max_num_batched_tokens = 2048;  // a step
  int32_t max_model_len = 0;              // prompt and output of one sequence
  bool enable_chunked_prefill = true;     // off: whole prompts only
  int32_t num_micro_batches = 1;          // pipeline stages: a step takes one share of the running sequences
  int32_t max_steps_in_flight = 1;        // 1: plain loop; look-ahead: 2, or stages + 1
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  int32_t max_num_waiting = 0;  // 0: the queue is bounded elsewhere
};

// invalid_argument names the options that cannot go together.
Status validate(const SchedulerOptions& options);

}  // namespace llm_dist::sched
