#include "src/sched/step_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace llm_dist::sched {
namespace {

StepPlan sample_plan() {
  StepPlan plan;
  plan.step = 7;
  plan.needs_tokens_of = 5;
  plan.mirror_checksum = 0x0123456789abcdef;
  plan.ended_slots = {3, 1};
  plan.starts = {{.slot = 1,
                  .prompt_len = 2,
                  .num_tokens = 3,
                  .temperature = 0.5f,
                  .top_k = 40,
                  .top_p = 0.9f,
                  .choice = 2,
                  .seed = 0xffffffffffull,
                  .num_logprobs = 5,
                  .min_tokens = 4,
                  .num_end_tokens = 2,
                  .rules = {.num_allowed = 3, .num_words = 3}}};
  plan.runs = {{.slot = 0, .begin = 17, .count = 1, .samples = 1},
               {.slot = 1, .begin = 0, .count = 3, .samples = 1, .num_new_blocks = 2, .num_scores = 1}};
  plan.tokens = {11, 12, 13};
  plan.end_tokens = {2, 0};
  plan.rule_words = {4, 5, 6};
  plan.blocks = {8, 9};
  return plan;
}

std::vector<std::byte> encoded(const StepPlan& plan) {
  std::vector<std::byte> bytes;
  encode(plan, bytes);
  return bytes;
}

TEST(StepPlan, DecodeReturnsWhatWasEncoded) {
  const StepPlan plan = sample_plan();
  StepPlan decoded;
  decoded.runs.resize(9);  // what an earlier plan left is gone
  decoded.shutdown = true;
  ASSERT_TRUE(decode(encoded(plan), decoded).ok());
  EXPECT_EQ(decoded.step, 7u);
  EXPECT_EQ(decoded.needs_tokens_of, 5u);
  EXPECT_EQ(decoded.mirror_checksum, 0x0123456789abcdefu);
  EXPECT_FALSE(decoded.shutdown);
  EXPECT_EQ(decoded.ended_slots, plan.ended_slots);
  ASSERT_EQ(decoded.starts.size(), 1u);
  EXPECT_EQ(decoded.starts[0].seed, 0xffffffffffu);
  EXPECT_EQ(decoded.starts[0].top_p, 0.9f);
  EXPECT_EQ(decoded.starts[0].min_tokens, 4);
  ASSERT_EQ(decoded.runs.size(), 2u);
  EXPECT_EQ(decoded.runs[0].begin, 17);
  EXPECT_EQ(decoded.runs[1].num_new_blocks, 2);
  EXPECT_EQ(decoded.tokens, plan.tokens);
  EXPECT_EQ(decoded.starts[0].rules.num_allowed, 3);
  EXPECT_EQ(decoded.end_tokens, plan.end_tokens);
  EXPECT_EQ(decoded.rule_words, plan.rule_words);
  EXPECT_EQ(decoded.blocks, plan.blocks);
  EXPECT_EQ(decoded.num_tokens(), 4);
  EXPECT_EQ(decoded.num_samples(), 3);
}

TEST(StepPlan, EveryTruncationAndExtensionIsRefused) {
  std::vector<std::byte> bytes = encoded(sample_plan());
  StepPlan decoded;
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode(std::span(bytes).first(size), decoded).code(), StatusCode::kDataLoss) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode(bytes, decoded).code(), StatusCode::kDataLoss);
}

TEST(StepPlan, AnotherVersionIsRefusedByName) {
  std::vector<std::byte> bytes = encoded(sample_plan());
  bytes[4] = std::byte{9};
  StepPlan decoded;
  EXPECT_NE(decode(bytes, decoded).message().find("version 9"), std::string::npos);
}

TEST(StepPlan, CountsThatLeadOutsideAreRefused) {
  const auto decode_of = [](auto change) {
    StepPlan plan = sample_plan();
    change(plan);
    StepPlan decoded;
    return decode(encoded(plan), decoded).code();
  };
  EXPECT_EQ(decode_of([](StepPlan& plan) { plan.starts[0].num_tokens = 4; }), StatusCode::kDataLoss);
  EXPECT_EQ(decode_of([](StepPlan& plan) { plan.starts[0].num_end_tokens = 1; }), StatusCode::kDataLoss);
  EXPECT_EQ(decode_of([](StepPlan& plan) { plan.starts[0].rules.num_words = 2; }), StatusCode::kDataLoss);
  EXPECT_EQ(decode_of([](StepPlan& plan) { plan.starts[0].rules.num_words = -3; }), StatusCode::kDataLoss);
  EXPECT_EQ(decode_of([](StepPlan& plan) { plan.runs[0].num_new_blocks = 1; }), StatusCode::kDataLoss);
  // Sums that agree do not excuse a negative part.
  EXPECT_EQ(decode_of([](StepPlan& plan) {
              plan.runs[0].num_new_blocks = -1;
              plan.runs[1].num_new_blocks = 3;
            }),
            StatusCode::kDataLoss);
}

TEST(StepPlan, GarbageNeverLeadsOutside) {
  std::mt19937 random(1);
  const std::vector<std::byte> good = encoded(sample_plan());
  StepPlan decoded;
  int num_accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes = good;
    for (uint32_t flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    if (!decode(bytes, decoded).ok()) continue;
    ++num_accepted;  // the damage hit a value: the mirror's checksum is there for that
    ASSERT_TRUE(check_counts(decoded).ok());
  }
  EXPECT_GT(num_accepted, 0);
  for (int i = 0; i < 2000; ++i) {
    std::vector<std::byte> bytes(random() % 300);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(decode(bytes, decoded).ok());
  }
}

}  // namespace
}  // namespace llm_dist::sched
