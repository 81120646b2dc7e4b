// StepPlan: what every rank does in one step. Rank 0 decides and publishes; it holds differences of state
// only. Each rank keeps a mirror of the sequences' slots (mirror.h) that plans bring up to date.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"
#include "src/sched/request.h"

namespace llm_dist::sched {

// A sequence takes a slot: its tokens so far (prompt, and output when it was preempted) and its sampling
// parameters.
struct SlotStart {
  int32_t slot = 0;
  int32_t prompt_len = 0;  // of num_tokens, the request's own prompt
  int32_t num_tokens = 0;  // the next num_tokens of StepPlan::tokens, positions 0…
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  uint32_t choice = 0;
  int32_t no_repeat_ngram_size = 0;
  uint64_t seed = 0;
  int32_t num_logprobs = -1;
  int32_t min_tokens = 0;
  int32_t num_end_tokens = 0;  // the next num_end_tokens of StepPlan::end_tokens
  RuleCounts rules;            // the next rules.num_words of StepPlan::rule_words
  int32_t num_prompt_logprobs = -1;
};

// Tokens [begin, begin + count) of a slot run in this step; begin = tokens whose K and V stand in the cache
// already.
struct SlotRun {
  int32_t slot = 0;
  int32_t begin = 0;
  int32_t count = 0;
  int32_t samples = 0;  // 1: the last of these tokens yields the next one, at position begin + count
  int32_t num_new_blocks =
      0;  // the next num_new_blocks of StepPlan::blocks, appended to the slot's block table
  // Prompt tokens whose log-probabilities this step yields: the last num_scores of those that follow one of
  // its tokens.
  int32_t num_scores = 0;
};

// Position of the first prompt token that the run scores.
inline int32_t first_scored(const SlotRun& run, int32_t prompt_len) {
  const int32_t last = run.begin + run.count < prompt_len ? run.begin + run.count : prompt_len - 1;
  return last - run.num_scores + 1;
}

struct StepPlan {
  static constexpr uint32_t kVersion = 2;

  uint64_t step = 0;  // 1, 2, 3, …
  // Tokens sampled by steps up to this one must stand in the first stage's history before this step starts:
  // those it reads, and those of the last holder of a slot it starts, lest they arrive late and overwrite.
  uint64_t needs_tokens_of = 0;
  // The mirror's checksum once this plan is applied.
  uint64_t mirror_checksum = 0;
  bool shutdown = false;  // the last plan; it holds nothing else

  std::vector<int32_t> ended_slots;  // applied first: they are free from this step on
  std::vector<SlotStart> starts;
  std::vector<SlotRun> runs;  // sequences with one token first, then prompt chunks
  std::vector<int32_t> tokens;
  std::vector<int32_t> end_tokens;
  std::vector<int32_t> rule_words;
  std::vector<int32_t> blocks;

  void clear();
  int64_t num_tokens() const;   // sum of runs' counts
  int64_t num_samples() const;  // rows of logits: of each run first its scores, then its sample
  bool decode_only() const;     // every run has one token
};

// Native byte order (every rank runs the same binary). `out` is reused: no allocation once it is large
// enough.
void encode(const StepPlan& plan, std::vector<std::byte>& out);
// data_loss unless starts and runs account for exactly the tokens, end tokens, rule words and blocks that the
// plan holds, so that a reader that walks them side by side stays inside.
Status check_counts(const StepPlan& plan);
// data_loss when the bytes are no plan of this version, or fail check_counts(). `plan` is reused.
Status decode(std::span<const std::byte> bytes, StepPlan& plan);

}  // namespace llm_dist::sched
