// LogitRules: what a request asks of single tokens' logits, packed into words that travel with its sequence
// and that samplers read as they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/status.h"

namespace llm_dist {

// What the rules and end tokens of one sequence may take: 8 KiB of every step's inputs.
inline constexpr int64_t kMaxRuleWords = 2048;

// What the words hold, in this order:
//   allowed  [num_allowed]    ids, ascending; when there are any, every other token is masked
//   biases   [num_biases, 2]  id, and the bits of a float that is added to its logit; each id once
//   bans     [num_bans, 2]    begin (counted from the first word) and length of a run of ids
//   the ids of those runs
// A ban masks the last id of its run wherever the output so far ends with the ids before it.
struct RuleCounts {
  int32_t num_allowed = 0;
  int32_t num_biases = 0;
  int32_t num_bans = 0;
  int32_t num_words = 0;

  bool empty() const { return num_words == 0; }
};

struct TokenBias {
  int32_t token = 0;
  float bias = 0.0f;
};

struct LogitRules {
  RuleCounts counts;
  std::vector<int32_t> words;
};

// `allowed`: in any order, with repetitions; none: everything is. `biases`: each token once. `bans`: none is
// empty.
LogitRules pack_rules(std::vector<int32_t> allowed,
                      std::span<const TokenBias> biases,
                      std::span<const std::vector<int32_t>> bans);

// data_loss unless the words are what the counts say, so that a reader that follows them stays inside.
Status check_rules(const RuleCounts& counts, std::span<const int32_t> words);

}  // namespace llm_dist
