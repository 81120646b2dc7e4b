// A device that follows plans literally: tokens stand in slots, "K and V" are the tokens themselves in
// blocks, and the next token is a hash of everything that the block table leads to. A wrong block, position
// or token changes the output.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/sched/mirror.h"
#include "src/sched/step_plan.h"

namespace llm_dist::sched {

constexpr int32_t kEndToken = 0;
constexpr int32_t kVocabulary = 24;

inline uint64_t fold(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

// The token that follows `tokens`: kEndToken once in kVocabulary times, though not before min_tokens.
inline int32_t next_token(uint64_t seed, std::span<const int32_t> tokens, bool may_end) {
  uint64_t hash = fold(17, seed);
  for (const int32_t token : tokens) hash = fold(hash, static_cast<uint64_t>(token) + 1);
  const auto token = static_cast<int32_t>((hash >> 20) % kVocabulary);
  return token == kEndToken && !may_end ? 1 : token;
}

class FakeDevice {
 public:
  FakeDevice(int32_t num_slots, int32_t max_blocks_per_slot, int32_t block_size, int32_t num_blocks)
      : mirror_(num_slots, max_blocks_per_slot, block_size, num_blocks),
        history_(static_cast<size_t>(num_slots)),
        cache_(static_cast<size_t>(num_blocks) * static_cast<size_t>(block_size), -1) {}

  // Runs the step and returns one token per row: of each run what is scored, then what is sampled. `error`
  // stays empty unless the plan was wrong.
  std::vector<int32_t> execute(const StepPlan& plan, std::string& error) {
    const Status status = mirror_.apply(plan);
    if (!status.ok()) error = status.to_string();
    size_t next = 0;
    for (const SlotStart& start : plan.starts) {
      const auto begin = plan.tokens.begin() + static_cast<ptrdiff_t>(next);
      history_[static_cast<size_t>(start.slot)].assign(begin, begin + start.num_tokens);
      next += static_cast<size_t>(start.num_tokens);
    }
    std::vector<int32_t> sampled;
    for (const SlotRun& run : plan.runs) {
      if (!error.empty()) return sampled;
      execute(run, sampled, error);
    }
    return sampled;
  }

  const Mirror& mirror() const { return mirror_; }

 private:
  int32_t& cache_at(int32_t slot, int32_t position) {
    const int32_t block = mirror_.blocks(slot)[static_cast<size_t>(position / mirror_.block_size())];
    return cache_[static_cast<size_t>(block * mirror_.block_size() + position % mirror_.block_size())];
  }

  void execute(const SlotRun& run, std::vector<int32_t>& sampled, std::string& error) {
    std::vector<int32_t>& history = history_[static_cast<size_t>(run.slot)];
    const int32_t end = run.begin + run.count;
    if (end > static_cast<int32_t>(history.size())) {
      error = "a run reads a token that nobody has written";
      return;
    }
    for (int32_t i = run.begin; i < end; ++i) cache_at(run.slot, i) = history[static_cast<size_t>(i)];
    const Mirror::Slot& slot = mirror_.slot(run.slot);
    const int32_t first = first_scored(run, slot.prompt_len);
    for (int32_t i = 0; i < run.num_scores; ++i) sampled.push_back(history[static_cast<size_t>(first + i)]);
    if (run.samples == 0) return;
    std::vector<int32_t> seen;
    for (int32_t i = 0; i < end; ++i) seen.push_back(cache_at(run.slot, i));
    sampled.push_back(next_token(slot.params.seed, seen, end - slot.prompt_len >= slot.params.min_tokens));
    history.push_back(sampled.back());
  }

  Mirror mirror_;
  std::vector<std::vector<int32_t>> history_;  // [num_slots]
  std::vector<int32_t> cache_;                 // [num_blocks, block_size]
};

}  // namespace llm_dist::sched
