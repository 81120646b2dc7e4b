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

TEST(StallRule, AStepThatTakesLongGetsTwentyTimesThat) {
  StallRule rule(10);
  engine::EngineStats stats;
  stats.expected_step_seconds = 4;
  EXPECT_FALSE(rule.stalled(stats, false, 100 * kSecond));
  EXPECT_FALSE(rule.stalled(stats, false, 179 * kSecond));
  EXPECT_TRUE(rule.stalled(stats, false, 181 * kSecond));
}

}  // namespace
}  // namespace llm_dist::server
