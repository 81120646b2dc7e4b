// A sequence as the scheduler follows it, from add() until the last step that touches it has retired.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "src/base/clock.h"
#include "src/sched/request.h"

namespace llm_dist::sched {

enum class SequenceState : uint8_t {
  kWaiting,     // no slot, no blocks
  kRunning,     // may be scheduled
  kFinal,       // its last possible token is in flight: nothing more to schedule
  kPreempting,  // gives its slot and blocks back once its steps in flight have retired, then waits again
  kEnded,       // finished or cancelled; gives back likewise, then it is gone
};

struct Sequence {
  SequenceId id = 0;
  SamplingParams sampling;
  SequenceState state = SequenceState::kWaiting;

  // Who goes first: priority (0 with the fcfs policy), then arrival, then order of add().
  int32_t priority = 0;
  TimePoint arrival;
  uint64_t order = 0;
  TimePoint started_at;  // when it first took a slot

  std::vector<int32_t> tokens;  // prompt and delivered output
  int32_t prompt_len = 0;
  int32_t max_len = 0;   // prompt and output, clipped by max_model_len
  bool started = false;  // has held a slot before
  // Prompt positions below it need no score: the first has none, steps in flight yield others, or none is
  // asked.
  int32_t scored_ahead = 0;

  // While it holds a slot. "Ahead" counts what steps in flight will have done.
  int32_t slot = -1;
  int32_t start_len = 0;       // tokens when it took the slot: up to here is prefill
  int32_t len_ahead = 0;       // tokens, those that steps in flight sample included
  int32_t computed_ahead = 0;  // tokens whose K and V stand in the cache
  int32_t num_blocks = 0;
  uint64_t last_step = 0;         // last step that touches it
  uint64_t last_sample_step = 0;  // last step that samples a token of it

  int32_t num_generated() const { return static_cast<int32_t>(tokens.size()) - prompt_len; }
  bool in_prefill() const { return computed_ahead < start_len; }
  bool wants_scores() const { return scored_ahead < prompt_len; }
  bool samples_no_more() const { return len_ahead >= max_len; }
};

inline bool goes_before(const Sequence& a, const Sequence& b) {
  return std::tie(a.priority, a.arrival, a.order) < std::tie(b.priority, b.arrival, b.order);
}

}  // namespace llm_dist::sched
