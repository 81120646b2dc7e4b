#include "src/sched/step_builder.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm_dist::sched {
namespace {

SlotStart start_of(const Sequence& sequence) {
  const SamplingParams& sampling = sequence.sampling;
  return {.slot = sequence.slot,
          .prompt_len = sequence.prompt_len,
          .num_tokens = static_cast<int32_t>(sequence.tokens.size()),
          .temperature = sampling.temperature,
          .top_k = sampling.top_k,
          .top_p = sampling.top_p,
          .min_p = sampling.min_p,
          .repetition_penalty = sampling.repetition_penalty,
          .presence_penalty = sampling.presence_penalty,
          .frequency_penalty = sampling.frequency_penalty,
          .choice = sampling.choice,
          .no_repeat_ngram_size = sampling.no_repeat_ngram_size,
          .seed = sampling.seed,
          .num_logprobs = sampling.num_logprobs,
          .min_tokens = sampling.min_tokens,
          .num_end_tokens = static_cast<int32_t>(sampling.end_token_ids.size()),
          .rules = sampling.rules.counts,
          .num_prompt_logprobs = sampling.num_prompt_logprobs};
}

template <typename T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

StepBuilder::StepBuilder(int32_t max_runs, int32_t max_new_blocks) {
  starts_.reserve(static_cast<size_t>(max_runs));
  runs_.reserve(static_cast<size_t>(max_runs));
  chunks_.reserve(static_cast<size_t>(max_runs));
  new_blocks_.reserve(static_cast<size_t>(max_new_blocks));
}

void StepBuilder::reset(int32_t token_budget, int32_t row_budget) {
  starts_.clear();
  runs_.clear();
  chunks_.clear();
  new_blocks_.clear();
  tokens_left_ = token_budget;
  rows_left_ = row_budget;
  needs_tokens_of_ = 0;
}

void StepBuilder::add_run(Run run) {
  CHECK_LE(run.count, tokens_left_);
  tokens_left_ -= run.count;
  rows_left_ -= run.num_scores + (run.samples ? 1 : 0);
  CHECK_GE(rows_left_, 0);
  run.first_block = static_cast<int32_t>(new_blocks_.size()) - run.num_new_blocks;
  runs_.push_back(run);
}

void StepBuilder::needs_tokens_of(uint64_t step) { needs_tokens_of_ = std::max(needs_tokens_of_, step); }

void StepBuilder::order_runs() {
  for (const Run& run : runs_) {
    if (run.count > 1) chunks_.push_back(run);
  }
  std::erase_if(runs_, [](const Run& run) { return run.count > 1; });
  append(runs_, std::span<const Run>(chunks_));
}

void StepBuilder::write(StepPlan& plan) const {
  plan.needs_tokens_of = needs_tokens_of_;
  for (const Sequence* sequence : starts_) {
    plan.starts.push_back(start_of(*sequence));
    append(plan.tokens, std::span<const int32_t>(sequence->tokens));
    append(plan.end_tokens, std::span<const int32_t>(sequence->sampling.end_token_ids));
    append(plan.rule_words, std::span<const int32_t>(sequence->sampling.rules.words));
  }
  for (const Run& run : runs_) {
    plan.runs.push_back({.slot = run.sequence->slot,
                         .begin = run.begin,
                         .count = run.count,
                         .samples = run.samples ? 1 : 0,
                         .num_new_blocks = run.num_new_blocks,
                         .num_scores = run.num_scores});
    append(plan.blocks,
           std::span(new_blocks_)
               .subspan(static_cast<size_t>(run.first_block), static_cast<size_t>(run.num_new_blocks)));
  }
}

}  // namespace llm_dist::sched
