// When an engine counts as hung.
#include "src/server/step_watch.h"

#include <gtest/gtest.h>

namespace llm_dist::server {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

TEST(StallRule, IdleIsNeverStalled) {
  StallRule rule(10);
  EXPECT_FALSE(rule.stalled({}, true, kSecond));
  EXPECT_FALSE(rule.stalled({}, true, 5000 * kSecond));
}

TEST(StallRule, CountsFromTheTimeWorkCameNotFromTheLastStep) {
  StallRule rule(10);
  engine::EngineStats stats;
  stats.last_progress_ns = kSecond;
  EXPECT_FALSE(rule.stalled(stats, true, 500 * kSecond));
  EXPECT_FALSE(rule.stalled(stats, false, 1000 * kSecond));
  EXPECT_FALSE(rule.stalled(stats, false, 1009 * kSecond));
  EXPECT_TRUE(rule.stalled(stats, false, 1011 * kSecond));
}

TEST(StallRule, AStepIsProgress) {
  StallRule rule(10);
  engine::EngineStats stats;
  EXPECT_FALSE(rule.stalled(stats, false, 100 * kSecond));
  stats.last_progress_ns = 105 * kSecond;
  EXPECT_FALSE(rule.stalled(stats, false, 114 * kSecond));
  EXPECT_TRUE(rule.stalled(stats, false, 116 * kSecond));
}

TEST(StallRule, SlowStepsGetTwentyTimesTheir99thPercentile) {
  StallRule rule(10);
  engine::EngineStats stats;
  for (int i = 0; i < 100; ++i) stats.step_seconds.add(3.0);  // in the bucket up to 4 s
  EXPECT_DOUBLE_EQ(quantile_seconds(stats.step_seconds, 0.99), 4.0);
  EXPECT_FALSE(rule.stalled(stats, false, 100 * kSecond));
  EXPECT_FALSE(rule.stalled(stats, false, 179 * kSecond));
  EXPECT_TRUE(rule.stalled(stats, false, 181 * kSecond));
}

TEST(Quantile, OfMixedSteps) {
  engine::DurationHistogram steps;
  EXPECT_EQ(quantile_seconds(steps, 0.99), 0);
  for (int i = 0; i < 98; ++i) steps.add(0.0001);
  for (int i = 0; i < 2; ++i) steps.add(0.9);
  EXPECT_LT(quantile_seconds(steps, 0.5), 0.0003);
  EXPECT_DOUBLE_EQ(quantile_seconds(steps, 0.99), 1.0);
}

}  // namespace
}  // namespace llm_dist::server
