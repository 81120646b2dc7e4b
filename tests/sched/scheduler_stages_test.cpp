// Steps of pipeline stages: micro-batches, several in flight.
#include "tests/sched/scheduler_bench.h"

namespace llm_dist::sched {
namespace {

TEST(SchedulerOfStages, MicroBatchesAreBalancedAndTakeTurns) {
  SchedulerOptions options = small_options();
  options.num_micro_batches = 3;
  options.max_steps_in_flight = 4;
  Bench bench(options);
  for (SequenceId id = 1; id <= 8; ++id) bench.add(id, 2, 40);
  bench.step();
  std::vector<int32_t> last_in(8, -1);
  for (int32_t step = 0; step < 12; ++step) {
    if (bench.scheduler.steps_in_flight() == 4) bench.retire();
    ASSERT_TRUE(bench.schedule());
    EXPECT_LE(bench.plan.runs.size(), 3u);
    EXPECT_GE(bench.plan.runs.size(), 2u);
    for (const SlotRun& run : bench.plan.runs) {
      int32_t& last = last_in[static_cast<size_t>(run.slot)];
      if (last >= 0) {
        EXPECT_LE(step - last, 3);
      }
      last = step;
    }
  }
}

// Else each step would wait for the one in front to leave the last stage, and the stages work by turns.
TEST(SchedulerOfStages, NoStepBesidePromptsNeedsTokensThatAreOnTheirWay) {
  for (const int32_t stages : {2, 3}) {
    SCOPED_TRACE(std::to_string(stages) + " stages");
    SchedulerOptions options = small_options();
    options.num_blocks = 256;
    options.max_num_seqs = 32;
    options.num_micro_batches = stages;
    options.max_steps_in_flight = stages + 1;
    Bench bench(options);
    for (SequenceId id = 1; id <= 31; ++id) bench.add(id, 16, 40);
    uint64_t step = 0;
    size_t num_decodes = 0;
    while (bench.scheduler.stats().num_waiting > 0) {
      if (bench.scheduler.steps_in_flight() == stages + 1) bench.retire();
      ASSERT_TRUE(bench.schedule());
      ++step;
      for (const int32_t count : counts_of(bench.plan)) num_decodes += count == 1 ? 1 : 0;
      if (bench.plan.needs_tokens_of > 0) {
        EXPECT_LE(bench.plan.needs_tokens_of + static_cast<uint64_t>(stages), step);
      }
    }
    EXPECT_LE(step, 22u);  // of 32 tokens: 16 for the prompts, and what decodes beside them take
    EXPECT_GT(num_decodes, 4 * step / static_cast<uint64_t>(stages));
    // Afterwards they keep to their turns, though they do not divide evenly.
    for (int32_t i = 0; i < 12; ++i) {
      while (bench.scheduler.steps_in_flight() > stages) bench.retire();
      ASSERT_TRUE(bench.schedule());
      ++step;
      EXPECT_LE(bench.plan.needs_tokens_of + static_cast<uint64_t>(stages), step) << i;
    }
  }
}

TEST(SchedulerOfStages, WithoutOtherWorkASequenceRunsInEachStep) {
  SchedulerOptions options = small_options();
  options.num_micro_batches = 2;
  options.max_steps_in_flight = 3;
  Bench bench(options);
  bench.add(1, 4, 20);
  for (uint64_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(bench.schedule());
    EXPECT_EQ(bench.plan.needs_tokens_of, step - 1);
  }
}

TEST(SchedulerOfStages, ChunksOfOnePromptFollowEachOtherInFlight) {
  SchedulerOptions options = small_options();
  options.max_num_batched_tokens = 16;
  options.num_micro_batches = 2;
  options.max_steps_in_flight = 3;
  Bench bench(options);
  bench.add(1, 40, 4);
  for (const int32_t begin : {0, 16, 32}) {
    ASSERT_TRUE(bench.schedule());
    EXPECT_EQ(bench.plan.runs.at(0).begin, begin);
    EXPECT_EQ(bench.plan.needs_tokens_of, 0u);
  }
  EXPECT_EQ(bench.plan.num_samples(), 1);
}

}  // namespace
}  // namespace llm_dist::sched
