#include "src/sched/mirror.h"

#include <algorithm>
#include <bit>

namespace llm_dist::sched {
namespace {

constexpr uint64_t kSeed = 0x9e3779b97f4a7c15;

uint64_t pair_of(int32_t high, int32_t low) {
  return uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low);
}
uint64_t pair_of(float high, float low) {
  return pair_of(std::bit_cast<int32_t>(high), std::bit_cast<int32_t>(low));
}

}  // namespace

Mirror::Mirror(int32_t num_slots, int32_t max_blocks_per_slot, int32_t block_size, int32_t num_blocks)
    : max_blocks_per_slot_(max_blocks_per_slot),
      block_size_(block_size),
      num_blocks_(num_blocks),
      checksum_(kSeed),
      slots_(static_cast<size_t>(num_slots)),
      last_run_(static_cast<size_t>(num_slots)),
      block_tables_(static_cast<size_t>(num_slots) * static_cast<size_t>(max_blocks_per_slot)) {
  CHECK_GT(num_slots, 0);
  CHECK_GT(max_blocks_per_slot, 0);
  CHECK_GT(block_size, 0);
}

const Mirror::Slot& Mirror::slot(int32_t index) const {
  CHECK(in_range(index), "slot {} of {}", index, num_slots());
  return slots_[static_cast<size_t>(index)];
}

std::span<const int32_t> Mirror::blocks(int32_t slot_index) const {
  const Slot& held = slot(slot_index);
  const size_t row = static_cast<size_t>(slot_index) * static_cast<size_t>(max_blocks_per_slot_);
  return std::span(block_tables_).subspan(row, static_cast<size_t>(held.num_blocks));
}

Status Mirror::apply(const StepPlan& plan) {
  RETURN_IF_ERROR(advance(plan));
  if (plan.shutdown || checksum_ == plan.mirror_checksum) return ok_status();
  return data_loss(format("step {}: this rank's mirror has drifted from rank 0's", plan.step));
}

Status Mirror::advance(const StepPlan& plan) {
  if (plan.shutdown) return ok_status();
  if (plan.step != step_ + 1) return data_loss(format("step plan {} after step {}", plan.step, step_));
  RETURN_IF_ERROR(check_counts(plan));
  step_ = plan.step;
  mix(plan.step);
  for (const int32_t ended : plan.ended_slots) RETURN_IF_ERROR(end(ended));
  std::span<const int32_t> tokens = plan.tokens;
  std::span<const int32_t> end_tokens = plan.end_tokens;
  std::span<const int32_t> rule_words = plan.rule_words;
  for (const SlotStart& params : plan.starts) {
    const auto num_tokens = static_cast<size_t>(params.num_tokens);
    const auto num_end_tokens = static_cast<size_t>(params.num_end_tokens);
    const auto num_words = static_cast<size_t>(params.rules.num_words);
    RETURN_IF_ERROR(start(
        params, tokens.first(num_tokens), end_tokens.first(num_end_tokens), rule_words.first(num_words)));
    tokens = tokens.subspan(num_tokens);
    end_tokens = end_tokens.subspan(num_end_tokens);
    rule_words = rule_words.subspan(num_words);
  }
  std::span<const int32_t> blocks = plan.blocks;
  for (const SlotRun& slot_run : plan.runs) {
    const auto num_new_blocks = static_cast<size_t>(slot_run.num_new_blocks);
    RETURN_IF_ERROR(run(slot_run, plan.step, blocks.first(num_new_blocks)));
    blocks = blocks.subspan(num_new_blocks);
  }
  return ok_status();
}

Status Mirror::end(int32_t slot_index) {
  if (!in_range(slot_index) || !slots_[static_cast<size_t>(slot_index)].active) {
    return data_loss(format("step {}: slot {} ends, but nothing holds it", step_, slot_index));
  }
  Slot& held = slots_[static_cast<size_t>(slot_index)];
  mix(pair_of(slot_index, held.num_blocks));
  held.active = false;
  held.num_tokens_known = held.num_computed = held.num_blocks = 0;
  return ok_status();
}

Status Mirror::start(const SlotStart& start,
                     std::span<const int32_t> tokens,
                     std::span<const int32_t> end_tokens,
                     std::span<const int32_t> rule_words) {
  if (!in_range(start.slot) || slots_[static_cast<size_t>(start.slot)].active) {
    return data_loss(format("step {}: slot {} starts, but it is not free", step_, start.slot));
  }
  const int64_t capacity = int64_t{max_blocks_per_slot_} * block_size_;
  if (start.prompt_len < 1 || start.prompt_len > start.num_tokens || start.num_tokens > capacity) {
    return data_loss(format("step {}: slot {} starts with {} prompt tokens of {}, {} fit",
                            step_,
                            start.slot,
                            start.prompt_len,
                            start.num_tokens,
                            capacity));
  }
  RETURN_IF_ERROR(check_rules(start.rules, rule_words));
  Slot& held = slots_[static_cast<size_t>(start.slot)];
  held.active = true;
  held.prompt_len = start.prompt_len;
  held.num_tokens_known = start.num_tokens;
  held.num_computed = held.num_blocks = 0;
  held.params = start;
  held.end_token_ids.assign(end_tokens.begin(), end_tokens.end());
  held.rule_words.assign(rule_words.begin(), rule_words.end());

  mix(pair_of(start.slot, start.prompt_len));
  mix(pair_of(start.num_tokens, start.top_k));
  mix(pair_of(start.temperature, start.top_p));
  mix(pair_of(start.min_p, start.repetition_penalty));
  mix(pair_of(start.presence_penalty, start.frequency_penalty));
  mix(pair_of(static_cast<int32_t>(start.choice), start.num_logprobs));
  mix(start.seed);
  mix(pair_of(start.min_tokens, start.num_end_tokens));
  for (const int32_t token : tokens) mix(static_cast<uint32_t>(token));
  mix(pair_of(start.no_repeat_ngram_size, start.rules.num_words));
  mix(pair_of(start.rules.num_allowed, start.rules.num_biases));
  mix(static_cast<uint32_t>(start.num_prompt_logprobs));
  for (const int32_t token : end_tokens) mix(static_cast<uint32_t>(token));
  for (const int32_t word : rule_words) mix(static_cast<uint32_t>(word));
  return ok_status();
}

Status Mirror::check_run(const SlotRun& run, uint64_t step) const {
  if (!in_range(run.slot) || !slots_[static_cast<size_t>(run.slot)].active) {
    return data_loss(format("step {}: slot {} runs, but nothing holds it", step, run.slot));
  }
  const Slot& held = slots_[static_cast<size_t>(run.slot)];
  const int64_t end = int64_t{run.begin} + run.count;
  const int64_t num_blocks = int64_t{held.num_blocks} + run.num_new_blocks;
  const bool contiguous = run.begin == held.num_computed && run.count >= 1 && end <= held.num_tokens_known;
  const bool sampling = run.samples == 0 || (run.samples == 1 && end == held.num_tokens_known);
  const bool stored = num_blocks <= max_blocks_per_slot_ && num_blocks * block_size_ >= end;
  const bool scored =
      run.num_scores >= 0 && (run.num_scores == 0 || first_scored(run, held.prompt_len) > run.begin);
  const bool once = last_run_[static_cast<size_t>(run.slot)] != step;
  if (contiguous && sampling && stored && scored && once) return ok_status();
  return data_loss(format(
      "step {}: slot {} cannot run {} tokens from {} (samples {}, scores {}, {} blocks) after {} of {} known",
      step,
      run.slot,
      run.count,
      run.begin,
      run.samples,
      run.num_scores,
      num_blocks,
      held.num_computed,
      held.num_tokens_known));
}

Status Mirror::run(const SlotRun& run, uint64_t step, std::span<const int32_t> blocks) {
  RETURN_IF_ERROR(check_run(run, step));
  for (const int32_t block : blocks) {
    if (block < 0 || block >= num_blocks_) {
      return data_loss(format("step {}: block {} of {}", step, block, num_blocks_));
    }
    mix(static_cast<uint32_t>(block));
  }
  Slot& held = slots_[static_cast<size_t>(run.slot)];
  const size_t row = static_cast<size_t>(run.slot) * static_cast<size_t>(max_blocks_per_slot_);
  std::ranges::copy(blocks, block_tables_.begin() + static_cast<ptrdiff_t>(row) + held.num_blocks);
  held.num_blocks += run.num_new_blocks;
  held.num_computed += run.count;
  held.num_tokens_known += run.samples;
  last_run_[static_cast<size_t>(run.slot)] = step;
  mix(pair_of(run.slot, held.num_computed));
  if (run.num_scores > 0) mix(static_cast<uint64_t>(run.num_scores));
  mix(pair_of(held.num_tokens_known, held.num_blocks));
  return ok_status();
}

// A chain over every change ever made: two mirrors agree as long as they took the same steps.
void Mirror::mix(uint64_t value) {
  checksum_ = (checksum_ ^ value) * 0xff51afd7ed558ccd;
  checksum_ ^= checksum_ >> 32;
}

}  // namespace llm_dist::sched
