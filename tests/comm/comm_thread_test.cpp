// The conformance suite over threads, and what only this backend can tell.
#include <gtest/gtest.h>

#include <thread>

#include "comm/agreement.h"
#include "comm/thread/thread_world.h"
#include "tests/comm/conformance.h"
#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

template <typename F>
void run_ranks(int size, F f) {
  ThreadWorld world(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&world, &f, r] {
      auto rank = world.join(r);
      Site site;
      f(*rank, site);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class ThreadConformance : public testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(ThreadConformance, Case) {
  auto [size, conformance_case] = GetParam();
  run_ranks(size, conformance_case.run);
}

INSTANTIATE_TEST_SUITE_P(Threads,
                         ThreadConformance,
                         testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(conformance_cases())),
                         [](const auto& instance) {
                           return case_name(std::get<1>(instance.param)) + "With" +
                                  std::to_string(std::get<0>(instance.param));
                         });

TEST(Agreement, IsYesWhereEveryRankSaysYes) {
  run_ranks(3, [](World& world, Site&) {
    const int rank = world.rank_info().rank;
    auto agreed = agree(world, {true, rank != 1, rank == 1, false}, Deadline::after_seconds(10));
    ASSERT_TRUE(agreed.ok()) << agreed.status().to_string();
    EXPECT_EQ(*agreed, (std::vector<bool>{true, false, false, false}));
    agreed = agree(world, {}, Deadline::after_seconds(10));
    ASSERT_TRUE(agreed.ok()) << agreed.status().to_string();
    EXPECT_TRUE(agreed->empty());
  });
}

TEST(Agreement, AmongSomeRanksIsTheirs) {
  run_ranks(3, [](World& world, Site&) {
    const int rank = world.rank_info().rank;
    const std::vector<int> alone = {0};
    const std::vector<int> others = {1, 2};
    const std::vector<bool> mine = rank == 0 ? std::vector<bool>{false} : std::vector<bool>{true, rank == 1};
    auto agreed = agree(world, rank == 0 ? alone : others, mine, Deadline::after_seconds(10));
    ASSERT_TRUE(agreed.ok()) << agreed.status().to_string();
    EXPECT_EQ(*agreed, rank == 0 ? std::vector<bool>{false} : (std::vector<bool>{true, false}));
  });
}

TEST(Agreement, OfUnlikeQuestionsIsAnErrorForAll) {
  run_ranks(3, [](World& world, Site&) {
    const size_t count = world.rank_info().rank == 2 ? 1 : 2;
    auto agreed = agree(world, std::vector<bool>(count, true), Deadline::after_seconds(10));
    EXPECT_EQ(agreed.status().code(), StatusCode::kInternal);
    EXPECT_EQ(agreed.status().message(), "rank 2 has 1 answers, rank 0 2");
  });
}

TEST(ThreadGroup, CallsThatDifferAreAnErrorForAll) {
  run_ranks(3, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    SiteTensor<float> data(site, group.rank() == 2 ? 8 : 9);
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    Status status = group.synchronize();
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(status.message(),
              "group all: rank 0 is in all_reduce of 9 f32 while rank 2 is in all_reduce of 8 f32");
  });
}

TEST(ThreadGroup, AReceiveOfAnotherLengthIsAnErrorForBoth) {
  run_ranks(2, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    SiteTensor<float> data(site, group.rank() == 0 ? 8 : 9);
    if (group.rank() == 0) group.comm->send(data.view(), 1, *group.stream);
    if (group.rank() == 1) group.comm->recv(data.view(), 0, *group.stream);
    EXPECT_EQ(group.synchronize().code(), StatusCode::kInternal);
  });
}

TEST(ThreadWorld, AbortEndsEveryGroupAndThoseToCome) {
  run_ranks(3, [](World& world, Site& site) {
    GroupUnderTest tp = make_group(world, site, "tp", 600);
    GroupUnderTest stage = make_group(world, site, "stage", 600);
    SiteTensor<float> data(site, 10);
    if (world.rank_info().rank == 1) {
      world.abort(unavailable("rank 7 died"));
    } else {
      tp.comm->all_reduce(data.view(), ReduceOp::kSum, *tp.stream);
      EXPECT_EQ(tp.synchronize().code(), StatusCode::kUnavailable);
    }
    // Waits for the abort, wherever this rank is.
    EXPECT_EQ(world.barrier(Deadline::after_seconds(60)).code(), StatusCode::kUnavailable);
    EXPECT_EQ(stage.comm->poll().message(), "rank 7 died");
    EXPECT_EQ(make_group(world, site, "late").comm->poll().message(), "rank 7 died");
    EXPECT_EQ(world.close(Deadline::after_seconds(1)).code(), StatusCode::kUnavailable);
  });
}

TEST(ThreadWorld, ABarrierHasADeadline) {
  run_ranks(2, [](World& world, Site&) {
    if (world.rank_info().rank == 1) return;
    EXPECT_EQ(world.barrier(Deadline::after_seconds(0.05)).code(), StatusCode::kDeadlineExceeded);
  });
}

}  // namespace
}  // namespace llm_dist::comm
