// What rank 0 makes of the ranks' measurements.
#include "src/engine/rank_book.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/cpu_communicator.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/engine/requests.h"

namespace llm_dist::engine {
namespace {

constexpr auto kAllReduce = static_cast<size_t>(comm::Collective::kAllReduce);
constexpr auto kRecv = static_cast<size_t>(comm::Collective::kRecv);

// The meters of a rank after `steps` steps of that many seconds each.
RankMeters after(uint64_t steps, double step_seconds, double all_reduce_seconds = 0, uint64_t every = 1) {
  RankMeters meters{.through_step = steps};
  for (uint64_t i = 0; i < steps / every; ++i) meters.step_seconds.add(step_seconds);
  meters.collectives[kAllReduce] = {.calls = steps,
                                    .seconds = all_reduce_seconds * static_cast<double>(steps)};
  meters.collectives[kRecv] = {.calls = steps, .seconds = 100};  // beside the steps
  return meters;
}

TEST(RankBook, SkewIsInOwnTimeNotInStepTime) {
  RankBook book(2);
  book.note(0, after(10, 0.5, 0.4));  // waits for the other
  EXPECT_EQ(book.step_skew_seconds(), 0) << "with one rank unheard";
  book.note(1, after(10, 0.5, 0.1));
  EXPECT_NEAR(book.step_skew_seconds(), 0.3, 1e-9);
  EXPECT_EQ(book.ranks()[1].step_seconds.count, 10u);
}

TEST(RankBook, OnlyTheStepsSinceTheLastReportCount) {
  RankBook book(2);
  book.note(0, after(10, 9.0));
  book.note(1, after(10, 1.0));
  RankMeters slow = after(10, 9.0);
  for (int i = 0; i < 10; ++i) slow.step_seconds.add(1.0);
  slow.through_step = 20;
  slow.collectives = after(10, 0).collectives;
  book.note(0, slow);
  EXPECT_NEAR(book.step_skew_seconds(), 0.0, 1e-9);
  book.note(0, slow);  // nothing new
  EXPECT_NEAR(book.step_skew_seconds(), 0.0, 1e-9);
}

TEST(RankBook, BubbleIsTheIdleShareOfTheActiveTime) {
  RankBook book(2);
  for (uint64_t step = 1; step <= 10; ++step) book.note_active(step, 2.0 * static_cast<double>(step));
  book.note(0, after(10, 1.0));
  book.note(1, after(10, 0.5));
  EXPECT_NEAR(book.bubble_fraction(), (0.5 + 0.75) / 2, 1e-9);
  // Not every step need be measured.
  RankBook sampled(1);
  for (uint64_t step = 1; step <= 16; ++step) sampled.note_active(step, 2.0 * static_cast<double>(step));
  sampled.note(0, after(16, 1.0, 0, 8));
  EXPECT_NEAR(sampled.bubble_fraction(), 0.5, 1e-9);
}

TEST(RankBook, CollectivesHaveTheirCommunicatorsNames) {
  for (size_t i = 0; i < kNumCollectives; ++i)
    EXPECT_EQ(kCollectiveNames[i], comm::to_string(static_cast<comm::Collective>(i)));
}

class Meters : public testing::Test {
 protected:
  // Stats once every rank has reported all its steps but a few.
  EngineStats measured(Replica& replica, const GoldenCase& golden) {
    replica.generate(random_requests(golden, 8));
    auto deadline = Deadline::after_seconds(20);
    EngineStats stats;
    do {
      stats = replica.engine().stats();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } while (!deadline.expired() && !all_told(stats));
    return stats;
  }
  static bool all_told(const EngineStats& stats) {
    for (const RankMeters& rank : stats.ranks)
      if (rank.through_step + 4 < stats.steps) return false;
    return !stats.ranks.empty();
  }
};

TEST_F(Meters, EveryRanksStepsAndCollectivesReachRank0) {
  GoldenCase golden = load_golden("grouped");
  auto replica = start(golden, {.engine = golden_options({.tp = 2, .pp = 2})});
  EngineStats stats = measured(*replica, golden);
  ASSERT_EQ(stats.ranks.size(), 4u);
  for (const RankMeters& rank : stats.ranks) {
    EXPECT_GT(rank.step_seconds.count + 8, stats.steps / 2);
    EXPECT_LE(rank.step_seconds.count, stats.steps);
    EXPECT_GT(rank.step_seconds.sum_seconds, 0);
    EXPECT_GT(rank.collectives[kAllReduce].calls, stats.steps);
    EXPECT_GT(rank.collectives[kAllReduce].seconds, 0);
    EXPECT_GT(rank.collectives[kRecv].calls, 0u);
  }
  EXPECT_GT(stats.pipeline_bubble_fraction, 0);
  EXPECT_LT(stats.pipeline_bubble_fraction, 1);
}

// Rank 1 is slow: rank 0's steps take as long, but in its collectives.
TEST_F(Meters, ASlowRankShowsAsSkew) {
  GoldenCase golden = load_golden("grouped");
  ReplicaOptions options{.engine = golden_options({.tp = 2})};
  options.make_backend = [](int rank) -> Result<std::unique_ptr<device::Backend>> {
    device::CpuBackendOptions backend;
    if (rank == 1) {
      backend.before_task = [](const std::string&, uint64_t) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      };
    }
    return device::make_cpu_backend(backend);
  };
  auto replica = start(golden, options);
  EngineStats stats = measured(*replica, golden);
  EXPECT_GT(stats.rank_step_skew_seconds, 0.001);
  EXPECT_EQ(stats.pipeline_bubble_fraction, 0);
}

}  // namespace
}  // namespace llm_dist::engine
