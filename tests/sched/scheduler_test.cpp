#include "src/sched/scheduler.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/sched/scheduler_bench.h"

namespace llm_dist::sched {
namespace {

TEST(Scheduler, OptionsThatCannotGoTogetherAreNamed) {
  SchedulerOptions options = small_options();
  EXPECT_TRUE(validate(options).ok());
  options.max_num_batched_tokens = 7;
  EXPECT_EQ(validate(options).message(), "max_num_batched_tokens (7) must be at least max_num_seqs (8)");
  options = small_options();
  options.enable_chunked_prefill = false;
  EXPECT_EQ(validate(options).code(), StatusCode::kInvalidArgument);
  options.max_num_batched_tokens = 64;
  EXPECT_TRUE(validate(options).ok());
  options.block_size = 0;
  EXPECT_EQ(validate(options).message(), "block_size is 0; it must be at least 1");
}

TEST(Scheduler, RequestsThatCanNeverRunAreRefusedWithTheNumbers) {
  SchedulerOptions options = small_options();
  options.num_blocks = 10;
  options.max_num_waiting = 1;
  Scheduler scheduler(options);
  EXPECT_EQ(scheduler.add(request_of(1, 0, 4)).message(), "the prompt is empty");
  EXPECT_NE(scheduler.add(request_of(1, 64, 4)).message().find("64 tokens"), std::string::npos);
  EXPECT_EQ(scheduler.add(request_of(1, 4, 0)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.add(request_of(1, 30, 12)).message(),
            "30 prompt tokens and up to 12 new ones do not fit in the KV cache of 40 tokens");
  EXPECT_TRUE(scheduler.add(request_of(1, 30, 11)).ok());
  EXPECT_EQ(scheduler.add(request_of(1, 4, 4)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.add(request_of(2, 4, 4)).code(), StatusCode::kResourceExhausted);
}

TEST(Scheduler, MaxTokensIsClippedByMaxModelLen) {
  Bench bench(small_options());
  bench.add(1, 61, std::numeric_limits<int32_t>::max());
  std::vector<FinishReason> finishes;
  while (!bench.scheduler.idle()) {
    bench.step();
    for (const TokenEvent& event : bench.events) finishes.push_back(event.finish);
  }
  EXPECT_EQ(finishes, (std::vector{FinishReason::kNone, FinishReason::kNone, FinishReason::kLength}));
}

TEST(Scheduler, DecodesGoFirstThenPromptChunksWithinTheBudget) {
  Bench bench(small_options());
  bench.add(1, 3, 20);
  bench.step();
  EXPECT_EQ(bench.events.at(0).id, 1u);
  EXPECT_TRUE(bench.events.at(0).first);
  bench.add(2, 40, 20);
  bench.add(3, 5, 20);
  bench.step();
  EXPECT_EQ(counts_of(bench.plan), (std::vector{1, 31}));
  EXPECT_EQ(bench.plan.num_samples(), 1);  // the prompt is not through
  bench.step();
  EXPECT_EQ(counts_of(bench.plan), (std::vector{1, 9, 5}));
  EXPECT_EQ(bench.plan.num_samples(), 3);
  EXPECT_EQ(bench.plan.runs[1].begin, 31);
  EXPECT_EQ(bench.plan.starts.size(), 1u);
  bench.step();
  EXPECT_EQ(counts_of(bench.plan), (std::vector{1, 1, 1}));
  EXPECT_TRUE(bench.plan.tokens.empty());
}

TEST(Scheduler, WithoutChunksALongPromptGetsItsStep) {
  SchedulerOptions options = small_options();
  options.enable_chunked_prefill = false;
  options.max_num_batched_tokens = 64;
  Bench bench(options);
  bench.add(1, 3, 50);
  bench.add(2, 3, 50);
  bench.step();
  bench.add(3, 63, 1);
  bench.add(4, 63, 1);
  bench.step();
  EXPECT_EQ(counts_of(bench.plan), (std::vector{1, 63}));
  const int32_t first = bench.plan.runs.at(0).slot;
  bench.step();
  EXPECT_EQ(counts_of(bench.plan), (std::vector{1, 63}));
  EXPECT_NE(bench.plan.runs.at(0).slot, first);  // they make way in turns
  EXPECT_EQ(bench.events.at(1).finish, FinishReason::kLength);
  bench.step();
  EXPECT_EQ(counts_of(bench.plan), (std::vector{1, 1}));
}

// The prompt in front is read in chunks for its scores, so the one behind it cannot start in these steps
// anyway.
TEST(Scheduler, WithoutChunksOthersGenerateWhileAPromptWaitsForAScoredOne) {
  SchedulerOptions options = small_options();
  options.enable_chunked_prefill = false;
  options.max_num_batched_tokens = 64;
  options.num_blocks = 128;
  Bench bench(options);
  for (SequenceId id = 1; id <= 4; ++id) bench.add(id, 3, 50);
  bench.step();
  SequenceRequest scored = request_of(5, 60, 1);
  scored.sampling.num_prompt_logprobs = 0;
  ASSERT_TRUE(bench.scheduler.add(std::move(scored)).ok());
  bench.step();
  bench.add(6, 63, 1);
  int num_steps = 0;
  for (bench.step(); bench.plan.runs.back().count < 63; bench.step()) {
    EXPECT_EQ(bench.plan.runs.size(), 5u) << "step " << num_steps;
    ASSERT_LT(++num_steps, 50) << "the prompt that waits has not started";
  }
  EXPECT_GT(num_steps, 5);
}

TEST(Scheduler, LookAheadReadsTheTokenOfTheStepInFlight) {
  Bench bench(small_options());
  bench.add(1, 4, 3);
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(bench.plan.needs_tokens_of, 0u);
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(bench.plan.needs_tokens_of, 1u);
  EXPECT_EQ(bench.plan.runs.at(0).begin, 4);
  EXPECT_EQ(bench.plan.runs.at(0).num_new_blocks, 1);
  EXPECT_FALSE(bench.schedule());  // two steps in flight
  bench.retire();
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(bench.plan.needs_tokens_of, 2u);
  bench.retire();
  EXPECT_FALSE(bench.schedule());  // max_tokens are in flight
  EXPECT_EQ(bench.scheduler.stats().num_running, 1);
  bench.retire();
  EXPECT_EQ(bench.events.at(0).finish, FinishReason::kLength);
  EXPECT_TRUE(bench.scheduler.idle());
}

TEST(Scheduler, EndTokenDropsTheTokenInFlightAndKeepsTheSlotUntilItRetires) {
  Bench bench(small_options());
  bench.add(1, 4, 20);
  bench.add(2, 4, 20);
  ASSERT_TRUE(bench.schedule());
  const int32_t slot = bench.plan.runs.at(0).slot;
  ASSERT_TRUE(bench.schedule());
  bench.retire({kEnd, 5});
  EXPECT_EQ(bench.events.at(0).token, kEnd);
  EXPECT_EQ(bench.events.at(0).finish, FinishReason::kStop);
  const int32_t num_free = bench.scheduler.stats().num_free_blocks;
  ASSERT_TRUE(bench.schedule());
  EXPECT_TRUE(bench.plan.ended_slots.empty());  // step 2 still writes to it
  EXPECT_EQ(bench.plan.runs.size(), 1u);
  bench.retire({7, 8});
  ASSERT_EQ(bench.events.size(), 1u);
  EXPECT_EQ(bench.events[0].id, 2u);
  EXPECT_EQ(bench.events[0].token, 8);
  EXPECT_EQ(bench.events[0].sample_index, 1);
  EXPECT_EQ(bench.scheduler.stats().num_free_blocks, num_free + 2);
  bench.add(3, 4, 20);
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(bench.plan.ended_slots, std::vector<int32_t>{slot});
  ASSERT_EQ(bench.plan.starts.size(), 1u);
  EXPECT_EQ(bench.plan.starts[0].slot, slot);
}

TEST(Scheduler, BlocksThatASequenceGivesBackAscendInTheNext) {
  Bench bench(small_options());
  const std::vector<int32_t> blocks = {0, 1, 2, 3, 4};
  for (SequenceId id : {1, 2}) {
    bench.add(id, 20, 1);
    ASSERT_TRUE(bench.schedule());
    EXPECT_EQ(bench.plan.blocks, blocks);
    bench.retire();
  }
}

TEST(Scheduler, EndTokensBeforeMinTokensDoNotEnd) {
  Bench bench(small_options());
  SequenceRequest request = request_of(1, 4, 20);
  request.sampling.min_tokens = 2;
  ASSERT_TRUE(bench.scheduler.add(request).ok());
  ASSERT_TRUE(bench.schedule());
  bench.retire({kEnd});
  EXPECT_EQ(bench.events.at(0).finish, FinishReason::kNone);
  ASSERT_TRUE(bench.schedule());
  bench.retire({kEnd});
  EXPECT_EQ(bench.events.at(0).finish, FinishReason::kStop);
}

TEST(Scheduler, CancelWorksInEveryState) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  Bench bench(options);
  bench.add(1, 4, 2);
  bench.add(2, 4, 20);
  bench.add(3, 4, 20);
  EXPECT_FALSE(bench.scheduler.cancel(9));
  EXPECT_TRUE(bench.scheduler.cancel(2));  // waits
  EXPECT_FALSE(bench.scheduler.cancel(2));
  ASSERT_TRUE(bench.schedule());
  ASSERT_TRUE(bench.schedule());
  EXPECT_TRUE(bench.scheduler.cancel(1));  // its last token is in flight
  EXPECT_FALSE(bench.scheduler.cancel(1));
  bench.retire();
  EXPECT_TRUE(bench.events.empty());
  EXPECT_FALSE(bench.schedule());  // the slot is touched by step 2
  bench.retire();
  ASSERT_TRUE(bench.schedule());
  EXPECT_TRUE(bench.scheduler.cancel(3));  // runs
  bench.retire();
  EXPECT_TRUE(bench.events.empty());
  EXPECT_TRUE(bench.scheduler.idle());
  EXPECT_EQ(bench.scheduler.stats().num_free_blocks, 64);
}

// Four blocks of four tokens; each sequence wants all of them in the end.
SchedulerOptions tight_options() {
  SchedulerOptions options = small_options();
  options.num_blocks = 4;
  return options;
}

// A scored prompt takes the rows of logits that the others leave it, and never theirs.
TEST(Scheduler, ScoredPromptsShareTheRowsOfAStep) {
  Bench bench(small_options());  // 8 rows
  bench.add(1, 4, 20);
  bench.add(2, 4, 20);
  bench.step();
  SequenceRequest scored = request_of(3, 15, 5);
  scored.sampling.num_prompt_logprobs = 0;
  ASSERT_TRUE(bench.scheduler.add(scored).ok());
  bench.add(4, 5, 5);
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(counts_of(bench.plan), (std::vector<int32_t>{1, 1, 6, 4}));
  EXPECT_EQ(bench.plan.runs[2].num_scores, 6);
  EXPECT_EQ(bench.plan.num_samples(), 8);
  ASSERT_TRUE(bench.schedule());  // 4 has its last token to read, and keeps its row
  EXPECT_EQ(counts_of(bench.plan), (std::vector<int32_t>{1, 1, 1, 5}));
  EXPECT_EQ(bench.plan.num_samples(), 8);
  bench.retire();
  ASSERT_EQ(bench.events.size(), 8u);
  EXPECT_EQ(bench.events[2].id, 3u);
  EXPECT_EQ(bench.events[2].prompt_position, 1);
  EXPECT_EQ(bench.events[7].prompt_position, 6);
  EXPECT_FALSE(bench.events[7].first);
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(counts_of(bench.plan), (std::vector<int32_t>{1, 1, 1, 4}));
  EXPECT_EQ(bench.plan.runs[3].num_scores, 3);
  EXPECT_EQ(bench.plan.runs[3].samples, 1);
  while (bench.scheduler.steps_in_flight() > 0) bench.retire();
  ASSERT_FALSE(bench.events.empty());
  EXPECT_EQ(bench.events.back().id, 3u);
  EXPECT_TRUE(bench.events.back().first);
}

TEST(Scheduler, OutOfBlocksTheLatestGoesBackAndLosesNothing) {
  Bench bench(tight_options());
  bench.add(1, 4, 12);
  bench.add(2, 4, 12);
  std::vector<SequenceId> finished;
  std::map<SequenceId, int32_t> num_tokens;
  bool resumed = false;
  while (!bench.scheduler.idle()) {
    bench.step();
    for (const SlotStart& start : bench.plan.starts) {
      if (start.num_tokens == start.prompt_len) continue;
      resumed = true;
      EXPECT_EQ(start.prompt_len, 4);
      EXPECT_EQ(start.num_tokens, 4 + num_tokens[2]);
    }
    for (const TokenEvent& event : bench.events) {
      ++num_tokens[event.id];
      if (event.finish != FinishReason::kNone) finished.push_back(event.id);
    }
  }
  EXPECT_TRUE(resumed);
  EXPECT_EQ(finished, (std::vector<SequenceId>{1, 2}));
  EXPECT_EQ(num_tokens[1], 12);
  EXPECT_EQ(num_tokens[2], 12);
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 1u);
}

TEST(Scheduler, TokensInFlightOfAPreemptedSequenceCount) {
  Bench bench(tight_options());
  bench.add(1, 7, 9);
  bench.add(2, 7, 9);
  ASSERT_TRUE(bench.schedule());  // 2 × 2 blocks
  ASSERT_TRUE(bench.schedule());  // position 7, the last of the second block
  bench.retire();
  ASSERT_FALSE(bench.schedule());  // 1 needs a block: 2 has to go, but step 2 runs with it
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 1u);
  EXPECT_EQ(bench.scheduler.stats().num_free_blocks, 0);
  ASSERT_FALSE(bench.schedule());  // and it waits, without preempting more
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 1u);
  bench.retire({5, 6});
  ASSERT_EQ(bench.events.size(), 2u);
  EXPECT_EQ(bench.events[1].id, 2u);
  EXPECT_EQ(bench.events[1].token, 6);
  EXPECT_EQ(bench.scheduler.stats().num_waiting, 1);
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(bench.plan.ended_slots.size(), 1u);
  EXPECT_EQ(bench.plan.runs.size(), 1u);
}

TEST(Scheduler, BlocksThatComeFreeAnywayAreWaitedFor) {
  SchedulerOptions options = small_options();
  options.num_blocks = 9;
  Bench bench(options);
  for (const SequenceId id : {1, 2, 3, 4}) bench.add(id, 7, 9);
  ASSERT_TRUE(bench.schedule());
  ASSERT_TRUE(bench.schedule());
  bench.retire();
  ASSERT_TRUE(
      bench.schedule());  // each wants a block: 1 takes the last, 4 will give back two, enough for 2 and 3
  EXPECT_EQ(bench.plan.runs.size(), 1u);
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 1u);
  bench.retire();
  ASSERT_TRUE(bench.schedule());
  EXPECT_EQ(bench.plan.runs.size(), 3u);
  EXPECT_EQ(bench.scheduler.stats().num_preemptions, 1u);
}

TEST(Scheduler, PreemptedSequenceMayFinishWithItsTokenInFlight) {
  Bench bench(tight_options());
  bench.add(1, 7, 9);
  bench.add(2, 7, 9);
  ASSERT_TRUE(bench.schedule());
  ASSERT_TRUE(bench.schedule());
  bench.retire();
  ASSERT_FALSE(bench.schedule());
  bench.retire({5, kEnd});
  EXPECT_EQ(bench.events.at(1).finish, FinishReason::kStop);
  EXPECT_EQ(bench.scheduler.stats().num_waiting, 0);
  while (!bench.scheduler.idle()) bench.step();
  EXPECT_EQ(bench.scheduler.stats().num_free_blocks, 4);
}

TEST(Scheduler, PriorityPolicyStartsAndKeepsTheUrgent) {
  SchedulerOptions options = small_options();
  options.policy = SchedulingPolicy::kPriority;
  options.max_num_seqs = 2;
  Bench bench(options);
  bench.add(1, 4, 9, 2);
  bench.add(2, 4, 9, 0);
  bench.add(3, 4, 9, 1);
  bench.step();
  std::vector<SequenceId> ids;
  for (const TokenEvent& event : bench.events) ids.push_back(event.id);
  EXPECT_EQ(ids, (std::vector<SequenceId>{2, 3}));
}

TEST(Scheduler, StatsTellHowMuchOfTheAllocatedBlocksIsUsed) {
  Bench bench(small_options());
  bench.add(1, 5, 20);
  bench.step();
  SchedulerStats stats = bench.scheduler.stats();
  EXPECT_EQ(stats.allocated_kv_tokens, 8);
  EXPECT_EQ(stats.used_kv_tokens, 5);
  EXPECT_EQ(stats.prompt_tokens_total, 5u);
  EXPECT_EQ(stats.generation_tokens_total, 1u);
  EXPECT_EQ(stats.num_running, 1);
  EXPECT_EQ(stats.num_free_blocks, 62);
}

TEST(Scheduler, StatsTellWhatHasNeverRun) {
  SchedulerOptions options = small_options();
  options.max_num_seqs = 1;
  options.num_blocks = 16;
  Bench bench(options);
  auto expect = [&](int32_t requests, int64_t tokens) {
    EXPECT_EQ(bench.scheduler.stats().num_unstarted, requests);
    EXPECT_EQ(bench.scheduler.stats().unstarted_tokens, tokens);
  };
  bench.add(1, 8, 20);
  bench.add(2, 5, 20);
  bench.add(3, 7, 20);
  expect(3, 20);
  bench.step();
  expect(2, 12);
  EXPECT_TRUE(bench.scheduler.cancel(3));  // while it waits
  expect(1, 5);
  EXPECT_TRUE(bench.scheduler.cancel(1));  // while it runs
  bench.step();
  expect(0, 0);
}

TEST(Scheduler, APreemptedSequenceCountsAsStarted) {
  SchedulerOptions options = small_options();
  options.num_blocks = 4;
  options.max_steps_in_flight = 1;
  Bench bench(options);
  bench.add(1, 7, 8);
  bench.add(2, 7, 8);
  for (int i = 0; i < 4; ++i) bench.step();
  EXPECT_GT(bench.scheduler.stats().num_preemptions, 0u);
  EXPECT_EQ(bench.scheduler.stats().num_waiting, 1);
  EXPECT_EQ(bench.scheduler.stats().num_unstarted, 0);
  EXPECT_EQ(bench.scheduler.stats().unstarted_tokens, 0);
}

TEST(SchedulerDeathTest, RetiringOutOfOrderIsABug) {
  Bench bench(small_options());
  bench.add(1, 4, 4);
  ASSERT_TRUE(bench.schedule());
  ASSERT_TRUE(bench.schedule());
  EXPECT_DEATH(bench.scheduler.retire(2, std::vector<int32_t>{5}, bench.events), "retires after");
  EXPECT_DEATH(bench.scheduler.retire(1, std::vector<int32_t>{}, bench.events), "num_rows");
}

}  // namespace
}  // namespace llm_dist::sched
