#include "src/sched/mirror.h"

#include <gtest/gtest.h>

namespace llm_dist::sched {
namespace {

constexpr int32_t kNumSlots = 3;
constexpr int32_t kMaxBlocks = 4;
constexpr int32_t kBlockSize = 4;
constexpr int32_t kNumBlocks = 10;

Mirror make_mirror() { return Mirror(kNumSlots, kMaxBlocks, kBlockSize, kNumBlocks); }

// Slot 1 takes six tokens and runs them all.
StepPlan first_plan() {
  StepPlan plan;
  plan.step = 1;
  plan.starts = {{.slot = 1, .prompt_len = 6, .num_tokens = 6, .seed = 5, .num_end_tokens = 1}};
  plan.tokens = {1, 2, 3, 4, 5, 6};
  plan.end_tokens = {2};
  plan.runs = {{.slot = 1, .begin = 0, .count = 6, .samples = 1, .num_new_blocks = 2}};
  plan.blocks = {7, 3};
  return plan;
}

StepPlan decode_plan() {
  StepPlan plan;
  plan.step = 2;
  plan.needs_tokens_of = 1;
  plan.runs = {{.slot = 1, .begin = 6, .count = 1, .samples = 1}};
  return plan;
}

// The code of applying `plan` as step 2, after first_plan().
StatusCode second(const StepPlan& plan) {
  Mirror mirror = make_mirror();
  EXPECT_TRUE(mirror.advance(first_plan()).ok());
  return mirror.advance(plan).code();
}

template <typename Change>
StatusCode second_changed(Change change) {
  StepPlan plan = decode_plan();
  change(plan);
  return second(plan);
}

TEST(Mirror, FollowsPlans) {
  Mirror mirror = make_mirror();
  ASSERT_TRUE(mirror.advance(first_plan()).ok());
  const Mirror::Slot& slot = mirror.slot(1);
  EXPECT_TRUE(slot.active);
  EXPECT_EQ(slot.prompt_len, 6);
  EXPECT_EQ(slot.num_tokens_known, 7);
  EXPECT_EQ(slot.num_computed, 6);
  EXPECT_EQ(slot.params.seed, 5u);
  EXPECT_EQ(slot.end_token_ids, std::vector<int32_t>{2});
  EXPECT_EQ(mirror.blocks(1)[0], 7);
  EXPECT_EQ(mirror.blocks(1)[1], 3);
  EXPECT_EQ(mirror.block_tables()[1 * kMaxBlocks + 1], 3);

  StepPlan next = decode_plan();
  next.ended_slots = {1};
  next.runs.clear();
  ASSERT_TRUE(mirror.advance(next).ok());
  EXPECT_FALSE(mirror.slot(1).active);
  EXPECT_TRUE(mirror.blocks(1).empty());
}

TEST(Mirror, EndedSlotStartsAgainInTheSamePlan) {
  StepPlan plan = first_plan();
  plan.step = 2;
  plan.ended_slots = {1};
  EXPECT_EQ(second(plan), StatusCode::kOk);
  plan.ended_slots.clear();
  EXPECT_EQ(second(plan), StatusCode::kDataLoss);
}

TEST(Mirror, ImpossibleOperationsAreDataLoss) {
  EXPECT_EQ(second(decode_plan()), StatusCode::kOk);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.step = 3; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.step = 1; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.ended_slots = {0}; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.ended_slots = {1, 1}; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.ended_slots = {-1}; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs[0].slot = kNumSlots; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs[0].slot = 0; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs[0].begin = 5; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs[0].count = 2; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs[0].count = 0; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs[0].samples = 2; }), StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) { plan.runs.push_back({1, 7, 1, 1, 0}); }),
            StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) {
              plan.runs[0].num_new_blocks = 1;
              plan.blocks = {kNumBlocks};
            }),
            StatusCode::kDataLoss);
  EXPECT_EQ(second_changed([](StepPlan& plan) {
              plan.runs[0].num_new_blocks = 3;
              plan.blocks = {0, 1, 2};
            }),
            StatusCode::kDataLoss);
}

// Slot 1 has six prompt tokens: five can be scored, in the step that runs the token before each.
TEST(Mirror, ScoresAreOfPromptTokensThatTheRunLeadsTo) {
  const auto applied = [](int32_t begin, int32_t count, int32_t num_scores) {
    Mirror mirror = make_mirror();
    StepPlan plan = first_plan();
    plan.runs[0].count = begin;
    plan.runs[0].samples = 0;
    if (begin == 0) plan.runs.clear();
    if (begin == 0) plan.blocks.clear();
    EXPECT_TRUE(mirror.advance(plan).ok());
    plan = decode_plan();
    plan.runs = {{.slot = 1, .begin = begin, .count = count, .num_scores = num_scores}};
    if (begin == 0) {
      plan.runs[0].num_new_blocks = 2;
      plan.blocks = {7, 3};
    }
    return mirror.advance(plan).code();
  };
  EXPECT_EQ(applied(0, 3, 3), StatusCode::kOk);
  EXPECT_EQ(applied(0, 3, 4), StatusCode::kDataLoss);
  EXPECT_EQ(applied(0, 3, -1), StatusCode::kDataLoss);
  EXPECT_EQ(applied(0, 6, 5), StatusCode::kOk);
  EXPECT_EQ(applied(0, 6, 6), StatusCode::kDataLoss);
  EXPECT_EQ(applied(3, 2, 2), StatusCode::kOk);
  EXPECT_EQ(applied(3, 2, 3), StatusCode::kDataLoss);
  EXPECT_EQ(applied(5, 1, 0), StatusCode::kOk);
  EXPECT_EQ(applied(5, 1, 1), StatusCode::kDataLoss);
}

TEST(Mirror, RulesThatLeadOutsideAreDataLoss) {
  const std::vector<int32_t> ban[] = {{8, 9}};
  const LogitRules rules = pack_rules({5, 3}, {}, ban);
  const auto applied = [&](auto change) {
    Mirror mirror = make_mirror();
    StepPlan plan = first_plan();
    plan.starts[0].rules = rules.counts;
    plan.rule_words = rules.words;
    change(plan);
    const StatusCode code = mirror.advance(plan).code();
    if (code == StatusCode::kOk) {
      EXPECT_EQ(mirror.slot(1).rule_words, rules.words);
    }
    return code;
  };
  EXPECT_EQ(applied([](StepPlan&) {}), StatusCode::kOk);
  EXPECT_EQ(applied([](StepPlan& plan) { plan.rule_words.pop_back(); }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& plan) { plan.starts[0].rules.num_bans = 2; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& plan) { plan.starts[0].rules.num_allowed = -1; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& plan) { plan.rule_words[2] = 5; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& plan) { plan.rule_words[3] = 0; }), StatusCode::kDataLoss);
}

TEST(Mirror, RunNeedsBlocksForItsTokens) {
  Mirror mirror = make_mirror();
  StepPlan plan = first_plan();
  plan.runs[0].num_new_blocks = 1;
  plan.blocks = {7};
  EXPECT_EQ(mirror.advance(plan).code(), StatusCode::kDataLoss);
}

TEST(Mirror, ChecksumTellsWhoTookADifferentStep) {
  Mirror rank0 = make_mirror();
  Mirror same = make_mirror();
  StepPlan plan = first_plan();
  ASSERT_TRUE(rank0.advance(plan).ok());
  plan.mirror_checksum = rank0.checksum();
  ASSERT_TRUE(same.apply(plan).ok());

  const auto applied = [&](auto change) {
    Mirror mirror = make_mirror();
    StepPlan changed = plan;
    change(changed);
    return mirror.apply(changed).code();
  };
  EXPECT_EQ(applied([](StepPlan& changed) { changed.tokens[2] = 9; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& changed) { changed.blocks[1] = 4; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& changed) { changed.starts[0].seed = 6; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& changed) { changed.starts[0].top_p = 0.5f; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& changed) { changed.end_tokens[0] = 3; }), StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& changed) { changed.starts[0].no_repeat_ngram_size = 3; }),
            StatusCode::kDataLoss);
  EXPECT_EQ(applied([](StepPlan& changed) { changed.runs[0].samples = 0; }), StatusCode::kDataLoss);

  // A difference is not forgotten by later steps that are the same.
  Mirror drifted = make_mirror();
  StepPlan other = first_plan();
  other.blocks[0] = 6;
  ASSERT_TRUE(drifted.advance(other).ok());
  StepPlan next = decode_plan();
  ASSERT_TRUE(rank0.advance(next).ok());
  next.mirror_checksum = rank0.checksum();
  EXPECT_TRUE(same.apply(next).ok());
  EXPECT_EQ(drifted.apply(next).code(), StatusCode::kDataLoss);
}

TEST(Mirror, ShutdownChangesNothing) {
  Mirror mirror = make_mirror();
  ASSERT_TRUE(mirror.advance(first_plan()).ok());
  const uint64_t checksum = mirror.checksum();
  StepPlan last;
  last.shutdown = true;
  EXPECT_TRUE(mirror.apply(last).ok());
  EXPECT_EQ(mirror.checksum(), checksum);
  EXPECT_TRUE(mirror.slot(1).active);
}

}  // namespace
}  // namespace llm_dist::sched
