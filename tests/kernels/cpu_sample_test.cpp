// Sampling of the CPU: Philox, each effect by itself, the distribution, and what no result may depend on.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "kernels/philox.h"
#include "tests/kernels/sample_fixture.h"

namespace llm_dist::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// kat_vectors of Random123 (Salmon et al. 2011).
static_assert(philox4x32_10({{0, 0, 0, 0}}, {{0, 0}}).words[0] == 0x6627e8d5u);

TEST(Philox, KnownAnswers) {
  const auto expect = [](PhiloxCounter counter, PhiloxKey key, std::vector<uint32_t> answer) {
    const PhiloxCounter r = philox4x32_10(counter, key);
    EXPECT_EQ(std::vector<uint32_t>(r.words, r.words + 4), answer);
  };
  expect({{0, 0, 0, 0}}, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect({{~0u, ~0u, ~0u, ~0u}}, {{~0u, ~0u}}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {{0xa4093822, 0x299f31d0}},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, UniformUsesEveryPartOfTheKeyAndCounter) {
  const std::set<double> draws = {sampling_uniform(1, 0, 0),
                                  sampling_uniform(uint64_t{1} << 32, 0, 0),
                                  sampling_uniform(1, 1, 0),
                                  sampling_uniform(1, 0, 1)};
  EXPECT_EQ(draws.size(), 4u);
  for (uint32_t i = 0; i < 10000; ++i) {
    const double u = sampling_uniform(3, i, 0);
    ASSERT_TRUE(u >= 0 && u < 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, CpuSampleTest, testing::ValuesIn(kTargets), target_name);

TEST_P(CpuSampleTest, GreedyTiesGoToTheSmallerId) {
  std::vector<double> logits(700, -1);
  logits[600] = logits[290] = logits[288] = 4;
  EXPECT_EQ(sample_one(logits, kGreedy).token, 288);
  EXPECT_EQ(sample_one({-0.0, 0.0, -1}, kGreedy).token, 0);
}

TEST_P(CpuSampleTest, PaddingRowsAreZeroed) {
  const std::vector<SampleRecord> records = sample({{0, 5}, {0, 5}}, {SampleRow{}, kGreedy});
  EXPECT_EQ(records[1].token, 1);
  const SampleRecord zero;
  EXPECT_EQ(std::memcmp(&records[0], &zero, sizeof zero), 0);
}

TEST_P(CpuSampleTest, TopKKeepsTheBestAndSmallerIdsOfTies) {
  SampleRow row{.slot = 0, .top_k = 2};
  std::vector<double> logits(2000, 0);
  logits[1500] = 1;
  const std::vector<int> counts = count_tokens(logits, row, 300);
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[1500], 0);
  EXPECT_EQ(counts[0] + counts[1500], 300);
  row.top_k = 1;
  EXPECT_EQ(count_tokens(logits, row, 20)[1500], 20);
}

TEST_P(CpuSampleTest, TopPKeepsTheSmallestSetThatReachesItsMass) {
  // 0.5, 0.25, 0.125, 0.125
  const std::vector<double> logits = {std::log(0.125), std::log(0.5), std::log(0.125), std::log(0.25)};
  const auto drawn = [&](float top_p) {
    std::set<size_t> ids;
    const std::vector<int> counts = count_tokens(logits, {.slot = 0, .top_p = top_p}, 400);
    for (size_t i = 0; i < 4; ++i) {
      if (counts[i] > 0) ids.insert(i);
    }
    return ids;
  };
  EXPECT_EQ(drawn(0.0f), (std::set<size_t>{1}));
  EXPECT_EQ(drawn(0.49f), (std::set<size_t>{1}));
  EXPECT_EQ(drawn(0.51f), (std::set<size_t>{1, 3}));
  EXPECT_EQ(drawn(0.76f), (std::set<size_t>{0, 1, 3})) << "the tie goes to id 0";
  EXPECT_EQ(drawn(0.9f), (std::set<size_t>{0, 1, 2, 3}));
}

// A flat distribution needs more candidates than the first guess.
TEST_P(CpuSampleTest, TopPOfAFlatDistribution) {
  const std::vector<double> logits(6000, 1.5);
  const std::vector<int> counts = count_tokens(logits, {.slot = 0, .top_p = 0.5f}, 300);
  int outside = 0;
  for (size_t i = 3001; i < 6000; ++i) outside += counts[i];
  EXPECT_EQ(outside, 0);
  EXPECT_GT(std::accumulate(counts.begin() + 2000, counts.begin() + 3001, 0), 50);
}

TEST_P(CpuSampleTest, TopPCountsTheMassThatTopKLeft) {
  const std::vector<double> logits = {std::log(0.4), std::log(0.3), std::log(0.2), std::log(0.1)};
  // Of {0.4, 0.3} token 0 has 0.571: above 0.55, though of all it has but 0.4.
  EXPECT_EQ(count_tokens(logits, {.slot = 0, .top_k = 2, .top_p = 0.55f}, 100)[0], 100);
}

TEST_P(CpuSampleTest, MinPDropsWhatIsFarBelowTheBest) {
  const std::vector<double> logits = {std::log(0.5), std::log(0.3), std::log(0.04), std::log(0.16)};
  for (const SampleRow& row : {SampleRow{.slot = 0, .min_p = 0.1f},
                               SampleRow{.slot = 0, .top_k = 4 - 1, .min_p = 0.5f},
                               SampleRow{.slot = 0, .top_p = 0.999f, .min_p = 0.1f}}) {
    const std::vector<int> counts = count_tokens(logits, row, 300);
    EXPECT_EQ(counts[2], 0);
    EXPECT_GT(counts[1], 0);
    EXPECT_EQ(counts[3] > 0, row.min_p < 0.2f);
  }
  EXPECT_EQ(count_tokens(logits, {.slot = 0, .min_p = 1.0f}, 50)[0], 50);
}

void expect_chi_square(const std::vector<int>& counts, const std::vector<double>& probabilities, int draws) {
  double chi_square = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * draws;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0);
      continue;
    }
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 27.9) << "99.9 % of χ² with 9 degrees of freedom";
}

TEST_P(CpuSampleTest, DrawsFollowTheDistribution) {
  constexpr int kDraws = 20000;
  std::vector<double> logits;
  std::vector<double> probabilities;
  double total = 0;
  for (int i = 0; i < 10; ++i) logits.push_back(0.37 * ((i * 7) % 10));
  for (double logit : logits) total += std::exp(logit / 1.5);
  for (double logit : logits) probabilities.push_back(std::exp(logit / 1.5) / total);
  expect_chi_square(count_tokens(logits, {.slot = 0, .temperature = 1.5f}, kDraws), probabilities, kDraws);
  expect_chi_square(count_tokens(logits, {.slot = 0, .temperature = 1.5f, .top_p = 0.99999f}, kDraws),
                    probabilities,
                    kDraws);
}

TEST_P(CpuSampleTest, SeedPositionAndChoiceEachChangeTheDraw) {
  const std::vector<double> logits(5000, 0);
  std::set<int32_t> tokens;
  for (const SampleRow& row : {SampleRow{.slot = 0, .seed = 1},
                               SampleRow{.slot = 0, .seed = 2},
                               SampleRow{.slot = 0, .choice = 1, .seed = 1},
                               SampleRow{.slot = 0, .position = 1, .seed = 1}}) {
    tokens.insert(sample_one(logits, row).token);
    EXPECT_EQ(sample_one(logits, row).token, sample_one(logits, row).token);
  }
  EXPECT_EQ(tokens.size(), 4u);
}

TEST_P(CpuSampleTest, NothingDependsOnTheBatchOrTheShards) {
  constexpr int64_t kVocab = 3001;
  std::vector<std::vector<double>> logits;
  std::vector<SampleRow> rows;
  for (int i = 0; i < 40; ++i) {
    logits.push_back(random_values(kVocab, 3));
    SampleRow row{.slot = 0, .position = i, .temperature = i % 5 == 0 ? 0.0f : 0.9f, .seed = 99};
    if (i % 4 == 1) row.top_k = 50;
    if (i % 4 == 2) row.top_p = 0.9f;
    if (i % 3 == 1) row.min_p = 0.01f;
    row.repetition_penalty = i % 7 == 0 ? 1.3f : 1.0f;
    row.num_logprobs = i % 6 - 1;
    rows.push_back(row);
  }
  const std::vector<double> history = random_values(64, 1000);
  const std::vector<SampleRecord> together = sample(logits, rows, 1, history);
  const std::vector<SampleRecord> sharded = sample(logits, rows, 3, history);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SampleRecord alone = sample_one(logits[i], rows[i], history);
    EXPECT_EQ(std::memcmp(&alone, &together[i], sizeof alone), 0) << i;
    EXPECT_EQ(std::memcmp(&alone, &sharded[i], sizeof alone), 0) << i;
  }
}

TEST_P(CpuSampleTest, LogprobsAreOfTheModelsOwnDistribution) {
  const std::vector<double> logits = random_values(777, 2);
  double total = 0;
  for (double logit : logits) total += std::exp(logit);
  std::vector<int32_t> order(777);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  SampleRow row{
      .slot = 0, .temperature = 3, .top_k = 5, .num_logprobs = 20, .num_banned = 1, .banned = {order[0]}};
  const SampleRecord record = sample_one(logits, row);
  EXPECT_NE(record.token, order[0]);
  const auto logprob = [&](int32_t id) { return logits[static_cast<size_t>(id)] - std::log(total); };
  EXPECT_NEAR(record.logprob, logprob(record.token), 1e-4);
  ASSERT_EQ(record.num_top, 20);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(record.top_ids[i], order[i]);
    EXPECT_NEAR(record.top_logprobs[i], logprob(order[i]), 1e-4);
  }
  row.num_logprobs = 0;
  EXPECT_EQ(sample_one(logits, row).num_top, 0);
  EXPECT_EQ(sample_one(logits, row).logprob, record.logprob);
  row.num_logprobs = -1;
  EXPECT_EQ(sample_one(logits, row).logprob, 0);
}

TEST_P(CpuSampleTest, AKnownTokenIsScoredAndNotDrawn) {
  SampleRow row{.slot = 0, .num_logprobs = 1, .num_banned = 1, .banned = {0}, .known_token = 0};
  const SampleRecord record = sample_one({0, 0, std::log(2.0)}, row);
  EXPECT_EQ(record.token, 0);
  EXPECT_NEAR(record.logprob, std::log(0.25), 1e-5);
  ASSERT_EQ(record.num_top, 1);
  EXPECT_EQ(record.top_ids[0], 2);
  EXPECT_NEAR(record.top_logprobs[0], std::log(0.5), 1e-5);
  row.known_token = 3;
  EXPECT_EQ(sample_one({0, 0, 0}, row).logprob, -std::numeric_limits<float>::infinity());
}

TEST_P(CpuSampleTest, TopLogprobsOfTiesAndSmallVocabularies) {
  const SampleRecord ties = sample_one(std::vector<double>(900, 2.0), {.slot = 0, .num_logprobs = 4});
  EXPECT_EQ(std::vector<int32_t>(ties.top_ids, ties.top_ids + 4), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_NEAR(ties.top_logprobs[3], -std::log(900.0), 1e-5);
  const SampleRecord few = sample_one({1, 2, 3}, {.slot = 0, .num_logprobs = 20});
  EXPECT_EQ(few.num_top, 3);
  EXPECT_EQ(few.top_ids[0], 2);
}

TEST_P(CpuSampleTest, StrangeLogitsYieldAToken) {
  const double nan = std::nan("");
  const std::vector<std::vector<double>> rows = {{nan, nan, nan},
                                                 {-kInfinity, -kInfinity, -kInfinity},
                                                 {nan, 1, nan},
                                                 {kInfinity, 0, kInfinity},
                                                 {nan, -kInfinity, -3e38}};
  const std::vector<int32_t> greedy = {0, 0, 1, 0, 2};
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(sample_one(rows[i], kGreedy).token, greedy[i]) << i;
    EXPECT_EQ(greedy_over_shards(rows[i], kGreedy, 2), greedy[i]) << i;
    for (SampleRow row : {SampleRow{.slot = 0, .num_logprobs = 2},
                          SampleRow{.slot = 0, .top_k = 2},
                          SampleRow{.slot = 0, .top_p = 0.5f},
                          SampleRow{.slot = 0, .temperature = 1e-40f}}) {
      const int32_t token = sample_one(rows[i], row).token;
      EXPECT_TRUE(token == greedy[i] || (i == 3 && token == 2)) << i << ": " << token;
    }
  }
  SampleRow banned = kGreedy;
  banned.num_banned = 2;
  banned.banned[1] = 1;
  EXPECT_EQ(sample_one(rows[0], banned).token, 2);
  EXPECT_EQ(greedy_over_shards(rows[0], banned, 2), 2);
  banned.num_banned = 3;
  banned.banned[2] = 2;
  EXPECT_EQ(sample_one(rows[2], banned).token, 0);
  EXPECT_EQ(greedy_over_shards(rows[2], banned, 2), 0);
}

TEST_P(CpuSampleTest, ArgmaxOverShardsIsGreedySampling) {
  for (int64_t vocab : {5, 256, 1000}) {
    for (int64_t width : {3, 256, 400}) {
      std::vector<double> logits = random_values(vocab, 1);
      for (double& logit : logits) logit = std::round(logit * 2);  // ties
      SampleRow row = kGreedy;
      EXPECT_EQ(greedy_over_shards(logits, row, width), sample_one(logits, row).token);
      row.num_banned = 1;
      row.banned[0] = sample_one(logits, row).token;
      EXPECT_EQ(greedy_over_shards(logits, row, width), sample_one(logits, row).token);
    }
  }
}

TEST_P(CpuSampleTest, ArgmaxOfPaddingRowsAndEmptyBatches) {
  EXPECT_EQ(greedy_over_shards({1, 2, 3}, SampleRow{}, 2), 0);
  const TestTensor logits(DType::kF32, {1, 0, 8});
  const TestTensor rows(DType::kU8, {0, static_cast<int64_t>(sizeof(SampleRow))});
  const TestTensor history(DType::kI32, {1, 4});
  const TestTensor records(DType::kI32, {0, kSampleRecordWords});
  const TestTensor best(DType::kF32, {1, 0, 2});
  run(ops_.sample, {.logits = logits, .vocab_size = 8, .rows = rows, .history = history, .records = records});
  run(ops_.argmax_shard,
      {.logits = logits.view().reshaped({0, 8}),
       .vocab_size = 8,
       .rows = rows,
       .best = best.view().reshaped({0, 2})});
  run(ops_.argmax_merge, {.best = best, .records = records});
}

}  // namespace
}  // namespace llm_dist::kernels
