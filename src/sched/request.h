// What the scheduler knows of a request: token ids and numbers. No text, no device.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "src/base/clock.h"
#include "src/base/logit_rules.h"

namespace llm_dist::sched {

// One generated continuation. A request with n choices is n sequences.
using SequenceId = uint64_t;

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int32_t max_tokens = 16;
  int32_t min_tokens = 0;  // end tokens are not drawn before that many
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;  // likewise of the prompt's tokens, the first excepted
  bool ignore_eos = false;
  std::vector<int32_t>
      end_token_ids;  // the model's EOS ids (unless ignore_eos) and the request's stop_token_ids
  LogitRules rules;   // logit_bias, allowed_token_ids, bad_words
  int32_t no_repeat_ngram_size = 0;
};

struct SequenceRequest {
  SequenceId id = 0;
  std::vector<int32_t> prompt;  // at least one token
  SamplingParams sampling;
  int32_t priority = 0;  // lower runs first, with the priority policy
  TimePoint arrival;
  // Another choice of a request that has been let in: no limit on what may wait counts for it.
  bool joins = false;
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };
std::string_view to_string(FinishReason reason);

}  // namespace llm_dist::sched
