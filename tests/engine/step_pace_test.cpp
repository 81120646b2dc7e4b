#include "src/engine/step_pace.h"

#include <gtest/gtest.h>

namespace llm_dist::engine {
namespace {

TEST(StepPace, NothingIsExpectedOfWhatWasNeverSeen) { EXPECT_EQ(StepPace().expected_seconds(2048), 0); }

TEST(StepPace, TheSlowestOfASizeCounts) {
  StepPace pace;
  pace.note(2048, 3);
  pace.note(4095, 5);
  EXPECT_EQ(pace.expected_seconds(2048), 5);
  EXPECT_EQ(pace.expected_seconds(4095), 5);
  pace.note(2049, 4);
  EXPECT_GT(pace.expected_seconds(2048), 4);
}

TEST(StepPace, AHostThatStoodStillIsForgotten) {
  StepPace pace;
  pace.note(8, 60);
  for (int i = 0; i < 50; ++i) pace.note(8, 0.01);
  EXPECT_GT(pace.expected_seconds(8), 20);
  for (int i = 0; i < 500; ++i) pace.note(8, 0.01);
  EXPECT_EQ(pace.expected_seconds(8), 0.01);
}

TEST(StepPace, ALongerStepTakesInProportion) {
  StepPace pace;
  pace.note(32, 0.5);
  EXPECT_EQ(pace.expected_seconds(2048), 32);
  pace.note(1024, 2);
  EXPECT_EQ(pace.expected_seconds(2048), 4) << "the nearest counts";
  EXPECT_EQ(pace.expected_seconds(1), 0.5) << "a shorter one takes no longer";
}

TEST(StepPace, DecodesDoNotHidePrompts) {
  StepPace pace;
  pace.note(2048, 9);
  for (int i = 0; i < 10'000; ++i) pace.note(8, 0.01);
  EXPECT_EQ(pace.expected_seconds(2048), 9);
  EXPECT_EQ(pace.expected_seconds(8), 0.01);
}

TEST(StepPace, AnyNumberOfTokensIsASize) {
  StepPace pace;
  pace.note(0, 1);
  EXPECT_EQ(pace.expected_seconds(0), 1);
  EXPECT_GT(pace.expected_seconds(int64_t{1} << 40), 1);
}

}  // namespace
}  // namespace llm_dist::engine
