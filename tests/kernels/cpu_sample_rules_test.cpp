// Sampling of the CPU: what a request's rules and penalties do to the logits.
#include <limits>
#include <set>

#include "tests/kernels/sample_fixture.h"

namespace llm_dist::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST_P(CpuSampleTest, BannedTokensAreNeverDrawn) {
  SampleRow row = kGreedy;
  row.num_banned = 3;
  row.banned[0] = 2;
  row.banned[1] = 999;  // beyond the vocabulary
  row.banned[2] = 0;
  EXPECT_EQ(sample_one({9, 3, 10, 4}, row).token, 3);
  row.temperature = 1;
  const std::vector<int> counts = count_tokens({9, 3, 10, 4}, row, 200);
  EXPECT_EQ(counts[0] + counts[2], 0);
}

TEST_P(CpuSampleTest, MoreBannedTokensThanARowHolds) {
  std::vector<double> logits(40, 0);
  std::vector<int32_t> words = {7, 7};
  SampleRow row = kGreedy;
  for (int32_t id = 0; id < 30; ++id) {
    logits[static_cast<size_t>(id)] = 40 - id;
    if (id < kMaxBannedTokens) row.banned[row.num_banned++] = id;
    if (id >= kMaxBannedTokens) words.push_back(id);
  }
  row.more_banned_begin = 2;
  row.num_more_banned = 30 - kMaxBannedTokens;
  EXPECT_EQ(sample({logits}, {row}, 1, std::vector<double>(64), words)[0].token, 30);
}

TEST_P(CpuSampleTest, BiasesAreAddedToSingleLogits) {
  const TokenBias biases[] = {{3, 5.5f}, {0, -100.0f}, {900, 100.0f}};  // one beyond the vocabulary
  const LogitRules rules = pack_rules({}, biases, {});
  EXPECT_EQ(sample_ruled({9, 8, 7, 3}, kGreedy, rules), 3);
  EXPECT_EQ(sample_ruled({9, 8, 7, 2}, kGreedy, rules), 1);
  SampleRow row = kGreedy;
  row.position = 1;
  row.repetition_penalty = 2;
  EXPECT_EQ(sample_ruled({0, 0.4, 0, -4.5}, row, rules, {3}), 3) << "(−4.5 + 5.5) / 2: the bias comes first";
}

TEST_P(CpuSampleTest, OnlyAllowedTokensAreDrawn) {
  std::vector<double> logits = random_values(3001, 3);
  const std::vector<int32_t> allowed = {2999, 7, 7, 512, 256, 100000};
  const LogitRules rules = pack_rules(allowed, {}, {});
  std::set<int32_t> drawn;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const SampleRow& row : {SampleRow{.slot = 0, .temperature = 9, .seed = seed},
                                 SampleRow{.slot = 0, .temperature = 9, .top_k = 100, .seed = seed},
                                 SampleRow{.slot = 0, .temperature = 9, .top_p = 0.99f, .seed = seed}}) {
      drawn.insert(sample_ruled(logits, row, rules));
    }
  }
  EXPECT_EQ(drawn, (std::set<int32_t>{7, 256, 512, 2999}));
}

// Prompt 1 2, output 3 1 2; 9 stands behind the position.
TEST_P(CpuSampleTest, ABanMasksWhatWouldCompleteItsRun) {
  const std::vector<double> history = {1, 2, 3, 1, 2, 9};
  const std::vector<double> logits = {0, 1, 2, 3, 4};
  SampleRow row = kGreedy;
  row.position = 5;
  row.prompt_len = 2;
  const auto best = [&](const std::vector<std::vector<int32_t>>& bans) {
    return sample_ruled(logits, row, pack_rules({}, {}, bans), history);
  };
  EXPECT_EQ(best({{4}}), 3);
  EXPECT_EQ(best({{1, 2, 4}}), 3);
  EXPECT_EQ(best({{3, 1, 2, 4}, {2, 3}}), 2);
  EXPECT_EQ(best({{2, 3, 1, 2, 4}}), 4) << "the prompt does not count";
  EXPECT_EQ(best({{1, 1, 4}, {2, 9, 4}, {1, 4}}), 4);
}

TEST_P(CpuSampleTest, NoNgramTwice) {
  const std::vector<double> history = {1, 2, 3, 1, 2, 4, 1, 2, 3};
  SampleRow row = kGreedy;
  row.prompt_len = 3;
  row.position = 8;  // 1 2 3 1 2 4 1 2
  const auto best = [&](int32_t n) {
    row.no_repeat_ngram_size = n;
    return sample_one({0, 1, 2, 4, 3}, row, history).token;
  };
  EXPECT_EQ(best(0), 3);
  EXPECT_EQ(best(1), 0) << "every token once";
  EXPECT_EQ(best(2), 2) << "after 2 came 3, in the prompt, and 4";
  EXPECT_EQ(best(3), 2) << "after 1 2 likewise";
  EXPECT_EQ(best(4), 3) << "4 1 2 is new";
  EXPECT_EQ(best(5), 3);
  EXPECT_EQ(best(9), 3) << "longer than all";
  row.position = 2;
  EXPECT_EQ(best(3), 3);
}

TEST_P(CpuSampleTest, MasksThatLeaveNothing) {
  const std::vector<int32_t> bans[] = {{4}, {7}};
  EXPECT_EQ(sample_ruled(random_values(9, 1), kGreedy, pack_rules({7, 4}, {}, bans)), 4);
  EXPECT_EQ(sample_ruled(std::vector<double>(9, -kInfinity), kGreedy, pack_rules({7, 4, 5}, {}, bans)), 5)
      << "nothing to choose by";
}

// 0 and 1 in the prompt, 1 twice and 2 once in the output; 3 stands behind the position and does not count.
TEST_P(CpuSampleTest, Penalties) {
  const std::vector<double> history = {0, 1, 1, 2, 1, 3, 3, 3};
  SampleRow row = kGreedy;
  row.position = 5;
  row.prompt_len = 2;
  const auto best = [&](const std::vector<double>& logits) { return sample_one(logits, row, history).token; };

  row.repetition_penalty = 2;
  EXPECT_EQ(best({4.0, 4.0, 4.0, 2.1, 0}), 3);
  EXPECT_EQ(best({4.3, 4.0, 4.0, 2.1, 0}), 0)
      << "4.3 / 2 is above 2.1: applied once, not for each occurrence";
  EXPECT_EQ(best({-1.0, -1.0, -1.0, -1.9, -9}), 3) << "negative logits are multiplied";
  EXPECT_EQ(best({-0.9, -1.0, -1.0, -1.9, -9}), 0);

  row.repetition_penalty = 1;
  row.presence_penalty = 1;
  EXPECT_EQ(best({1.0, 2.1, 1.9, 0, 0}), 1) << "once, whatever the count";
  EXPECT_EQ(best({1.5, 2.1, 1.9, 0, 0}), 0) << "the prompt does not count";

  row.presence_penalty = 0;
  row.frequency_penalty = 1;
  EXPECT_EQ(best({0, 2.5, 1.6, 0, 0}), 2) << "2.5 − 2 against 1.6 − 1";
  EXPECT_EQ(best({0, 2.7, 1.6, 0, 0}), 1);

  row.repetition_penalty = 2;
  EXPECT_EQ(best({0, 5.0, 3.1, 0.51, 0}), 2)
      << "5 / 2 − 2 = 0.5 against 3.1 / 2 − 1 = 0.55: repetition first";
}

}  // namespace
}  // namespace llm_dist::kernels
