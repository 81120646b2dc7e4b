// Decode steady state: schedule(), encode() and retire() allocate nothing, and take microseconds.
#include <gtest/gtest.h>

#include <cstdio>

#include "src/sched/scheduler.h"
#include "tests/base/allocation_count.h"

namespace llm_dist::sched {
namespace {

constexpr int32_t kNumSequences = 256;

struct Shape {
  int32_t num_micro_batches;
  int32_t max_steps_in_flight;
};

class SteadyState : public testing::TestWithParam<Shape> {};

TEST_P(SteadyState, DecodeAllocatesNothing) {
  Scheduler scheduler({.num_blocks = kNumSequences * 128,
                       .block_size = 16,
                       .max_num_seqs = kNumSequences,
                       .max_num_batched_tokens = 2048,
                       .max_model_len = 2048,
                       .num_micro_batches = GetParam().num_micro_batches,
                       .max_steps_in_flight = GetParam().max_steps_in_flight});
  for (SequenceId id = 1; id <= kNumSequences; ++id) {
    SequenceRequest request{.id = id, .prompt = std::vector<int32_t>(7 + id % 16, 3)};
    request.sampling.max_tokens = 2000;
    request.sampling.end_token_ids = {2};
    ASSERT_TRUE(scheduler.add(std::move(request)).ok());
  }
  StepPlan plan;
  std::vector<std::byte> bytes;
  std::vector<TokenEvent> events;
  const std::vector<int32_t> tokens(kNumSequences, 5);
  std::vector<size_t> num_samples(static_cast<size_t>(GetParam().max_steps_in_flight) + 1);
  uint64_t retired = 0;
  int64_t num_tokens = 0;
  const auto turn = [&] {
    ASSERT_TRUE(scheduler.schedule(plan));
    encode(plan, bytes);
    num_samples[plan.step % num_samples.size()] = static_cast<size_t>(plan.num_samples());
    if (scheduler.steps_in_flight() < GetParam().max_steps_in_flight) return;
    ++retired;
    scheduler.retire(retired, std::span(tokens).first(num_samples[retired % num_samples.size()]), events);
    num_tokens += static_cast<int64_t>(events.size());
  };
  for (int i = 0; i < 100; ++i) turn();
  ASSERT_EQ(scheduler.stats().num_running, kNumSequences);

  constexpr int kNumSteps = 1000;
  const int64_t allocations_before = num_allocations();
  num_tokens = 0;
  const int64_t begin_ns = now_ns();
  for (int i = 0; i < kNumSteps; ++i) turn();
  const double step_us = static_cast<double>(now_ns() - begin_ns) / 1e3 / kNumSteps;
  EXPECT_EQ(num_allocations() - allocations_before, 0);
  EXPECT_EQ(num_tokens, int64_t{kNumSteps} * kNumSequences / GetParam().num_micro_batches);
  std::printf(
      "%d decodes, %d micro-batches: %.1f us a step\n", kNumSequences, GetParam().num_micro_batches, step_us);
}

INSTANTIATE_TEST_SUITE_P(Shapes, SteadyState, testing::Values(Shape{1, 1}, Shape{1, 2}, Shape{4, 5}));

}  // namespace
}  // namespace llm_dist::sched
