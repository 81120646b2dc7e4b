#include "src/base/logit_rules.h"

#include <algorithm>
#include <bit>

#include "src/base/check.h"

namespace llm_dist {
namespace {

bool runs_stand_inside(const RuleCounts& counts, std::span<const int32_t> words) {
  const int64_t table = int64_t{counts.num_allowed} + 2 * int64_t{counts.num_biases};
  const int64_t first_id = table + 2 * int64_t{counts.num_bans};
  if (first_id > static_cast<int64_t>(words.size())) return false;
  for (int64_t i = 0; i < counts.num_bans; ++i) {
    const int64_t begin = words[static_cast<size_t>(table + 2 * i)];
    const int64_t length = words[static_cast<size_t>(table + 2 * i + 1)];
    if (begin < first_id || length < 1 || begin + length > static_cast<int64_t>(words.size())) return false;
  }
  return true;
}

}  // namespace

LogitRules pack_rules(std::vector<int32_t> allowed,
                      std::span<const TokenBias> biases,
                      std::span<const std::vector<int32_t>> bans) {
  std::ranges::sort(allowed);
  const auto repeated = std::ranges::unique(allowed);
  allowed.erase(repeated.begin(), repeated.end());
  LogitRules rules;
  rules.counts.num_allowed = static_cast<int32_t>(allowed.size());
  rules.counts.num_biases = static_cast<int32_t>(biases.size());
  rules.counts.num_bans = static_cast<int32_t>(bans.size());
  std::vector<int32_t>& words = rules.words;
  words = std::move(allowed);
  for (const TokenBias& bias : biases) {
    words.push_back(bias.token);
    words.push_back(std::bit_cast<int32_t>(bias.bias));
  }
  auto begin = static_cast<int32_t>(words.size() + 2 * bans.size());
  for (const std::vector<int32_t>& run : bans) {
    CHECK(!run.empty(), "a ban without tokens");
    words.push_back(begin);
    words.push_back(static_cast<int32_t>(run.size()));
    begin += static_cast<int32_t>(run.size());
  }
  for (const std::vector<int32_t>& run : bans) words.insert(words.end(), run.begin(), run.end());
  rules.counts.num_words = static_cast<int32_t>(words.size());
  return rules;
}

Status check_rules(const RuleCounts& counts, std::span<const int32_t> words) {
  const bool counted = counts.num_allowed >= 0 && counts.num_biases >= 0 && counts.num_bans >= 0 &&
                       counts.num_words == static_cast<int64_t>(words.size());
  if (counted && runs_stand_inside(counts, words)) return ok_status();
  return data_loss(format("{} words hold no {} allowed tokens, {} biases and {} bans",
                          words.size(),
                          counts.num_allowed,
                          counts.num_biases,
                          counts.num_bans));
}

}  // namespace llm_dist
