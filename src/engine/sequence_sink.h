// SequenceSink: where a sequence's tokens go.
#pragma once

#include <cstdint>
#include <span>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/sched/request.h"

namespace llm_dist::engine {

// One generated token, or the end without one (token −1: cancelled, or an error), or one prompt token's
// log-probabilities. Those of the prompt come first, in order of position.
struct Generated {
  sched::SequenceId id = 0;
  int32_t token = -1;
  int32_t prompt_position = -1;      // from 1 on: of the prompt's token there
  float logprob = 0.0f;              // when the request asked for log-probabilities
  std::span<const int32_t> top_ids;  // valid during the call
  std::span<const float> top_logprobs;
  sched::FinishReason finish = sched::FinishReason::kNone;
  const Status* error = nullptr;  // with kError; valid during the call
  TimePoint started;              // with a token: when the sequence first ran
};

// Called on the step thread: it must return at once, without waiting and without detokenizing.
class SequenceSink {
 public:
  virtual ~SequenceSink() = default;
  virtual void on_generated(const Generated& generated) = 0;
};

}  // namespace llm_dist::engine
