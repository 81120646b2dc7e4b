// Sums, additions to shares of the residual stream and norms in one kernel, beside the calls apart.
#include "tests/comm/shares_twin.h"

namespace llm_dist::comm {
namespace {

// Of lanes, warps, blocks and rounds of all of them: some, all, and more than all.
std::vector<ShareShape> all_shapes() {
  std::vector<ShareShape> shapes;
  for (int64_t hidden : {64, 576, 4096, 8192})
    for (int64_t rows_of_rank : {int64_t{1}, int64_t{3}, int64_t{64}, kMostRowsOfRank})
      shapes.push_back({rows_of_rank, hidden});
  for (int64_t hidden : {8, 4104, 8184, 8200, 12288, 16384}) shapes.push_back({3, hidden});
  shapes.push_back({1100, 512});  // a warp has two rows
  shapes.push_back({1100, 8});
  return shapes;
}

std::vector<ShareShape> some_shapes() {
  return {{1, 4096}, {3, 576}, {16, 8192}, {130, 64}, {257, 2048}, {2, 16384}, {40, 8}, {128, 4096}};
}

class P2pShares : public testing::TestWithParam<int> {
 protected:
  void run(const RankBody& body) const {
    if (ranks_share_gpu() && GetParam() > 2)
      GTEST_SKIP() << "kernels of two ranks that wait leave a third one's no room on a GPU";
    run_with(GetParam(), kSharedWays, body);
  }
};

template <typename T, typename Body>
void with_shapes(World& world, Site& site, std::vector<ShareShape> shapes, Body&& body) {
  with_twin<SharesTwin, T>(world, site, std::forward<Body>(body), std::move(shapes));
}

TEST_P(P2pShares, HaveTheBitsOfTheCallsApart) {
  run([](World& world, Site& site) {
    auto check = [&](auto type) {
      using T = decltype(type);
      with_shapes<T>(world, site, all_shapes(), [](SharesTwin<T>& twin, GroupUnderTest&) {
        twin.restart();
        for (size_t shape = 0; shape < twin.num_shapes(); ++shape) {
          SCOPED_TRACE(std::to_string(twin.rows(shape)) + " rows of " + std::to_string(twin.hidden(shape)));
          ASSERT_TRUE(twin.reducer().takes_shares(twin.rows(shape), twin.hidden(shape), DTypeOf<T>::kValue));
          for (int i = 0; i < 2; ++i) {
            twin.shared(shape);
            twin.apart(shape);
          }
          twin.shared_sum(shape);
          twin.apart_sum(shape);
          twin.expect_alike();
        }
      });
    };
    check(BFloat16{});
    check(Float16{});
  });
}

// Many calls that no host waits for, alone and between the others of the group.
TEST_P(P2pShares, CallsOfAllShapesBackToBack) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [](SharesTwin<BFloat16>& twin, GroupUnderTest&) {
      for (unsigned seed = 1; seed <= 6; ++seed) {
        const std::vector<size_t> calls = calls_of(twin.num_shapes(), 100, seed);
        twin.restart();
        for (size_t shape : calls) {
          if (seed % 3 == 1) twin.apart(shape);
          twin.shared(shape);
          if (seed % 3 == 2) twin.apart(shape);
        }
        if (seed % 3 == 0)
          for (size_t shape : calls) twin.apart(shape);
        twin.expect_alike();
      }
    });
  });
}

// By one kernel where there are many rows, by one a share where there are few. Of the largest
// shape blocks have more than one tile, and their stores cross beside products.
TEST_P(P2pShares, TakeWhatProductsStoreAtTheRanks) {
  if (ranks_share_gpu()) GTEST_SKIP() << "products take the room in which the other rank's calls wait";
  run([](World& world, Site& site) {
    auto check = [&](auto type) {
      using T = decltype(type);
      constexpr int64_t kWidth = 2048;
      std::vector<ShareShape> shapes;
      for (int64_t rows_of_rank : {512, 3, 513, 130, 1100}) shapes.push_back({rows_of_rank, kWidth});
      auto body = [](SharesTwin<T>& twin, GroupUnderTest& group) {
        for (unsigned seed = 1; seed <= 4; ++seed) {
          const std::vector<size_t> calls = calls_of(twin.num_shapes(), 60, seed + 40);
          std::mt19937 generator(seed);
          twin.restart();
          for (size_t shape : calls) {
            if (static_cast<int>(generator() % static_cast<unsigned>(2 * group.size())) == group.rank())
              twin.fall_behind(generator() % 20);
            twin.shared(shape);
          }
          for (size_t shape : calls) twin.apart(shape);
          twin.expect_alike();
        }
      };
      with_twin<SharesTwin, T>(world, site, body, shapes, Between::kProduct);
    };
    check(BFloat16{});
    check(Float16{});
  });
}

// Now one rank comes late to a call, now another; and those that wait have their next calls behind it.
TEST_P(P2pShares, RanksThatComeLate) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        const std::vector<size_t> calls = calls_of(twin.num_shapes(), 60, seed + 20);
        std::mt19937 generator(seed);
        twin.restart();
        for (size_t shape : calls) {
          const unsigned late = generator() % static_cast<unsigned>(2 * group.size());
          const unsigned copies = 1 + generator() % 40;
          if (static_cast<int>(late) == group.rank()) twin.fall_behind(copies);
          twin.shared(shape);
        }
        for (size_t shape : calls) twin.apart(shape);
        twin.expect_alike();
      }
    });
  });
}

TEST_P(P2pShares, GraphsReplayManyTimes) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<size_t> calls = calls_of(twin.num_shapes(), 33, 3);
      std::mt19937 late(static_cast<unsigned>(group.rank()));
      auto issue = [&] {
        for (size_t i = 0; i < calls.size(); ++i) {
          if (late() % 8 == 0) twin.fall_behind(late() % 10);
          twin.shared(calls[i]);
          if (i % 2 == 0) twin.shared(calls[i]);
          twin.apart(calls[i]);
          if (i % 2 == 0) twin.apart(calls[i]);
        }
      };
      replay_in_graph(world,
                      site,
                      group,
                      {.issue = issue,
                       .restart = [&] { twin.restart(); },
                       .expect = [&] { twin.expect_alike(); },
                       .rounds = 20,
                       .replays = 5});
    });
  });
}

TEST_P(P2pShares, AnAbortEndsWaitingKernels) {
  run([](World& world, Site& site) {
    with_shapes<BFloat16>(world, site, some_shapes(), [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      twin.restart();
      auto issue = [&] {
        for (size_t shape : calls_of(twin.num_shapes(), 64, 9)) twin.shared(shape);
      };
      auto issue_more = [&] { twin.shared(0); };
      const bool waiting = group.rank() != group.size() - 1;
      expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
    });
  });
}

TEST_P(P2pShares, TakesWhatItsKernelAndItsLimitAreFor) {
  const PeerLimits limits{.packets_bytes = 4096, .shared_bytes = 64 * 1152};
  run_with(GetParam(), limits, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    const int64_t rows = 64 / group.size() * group.size();
    EXPECT_TRUE(reducer.takes_shares(rows, 576, DType::kBF16));
    EXPECT_TRUE(reducer.takes_shares(rows, 576, DType::kF16));
    EXPECT_FALSE(reducer.takes_shares(rows, 576, DType::kF32));
    EXPECT_FALSE(reducer.takes_shares(rows + group.size(), 576, DType::kBF16));  // more bytes than the limit
    EXPECT_FALSE(reducer.takes_shares(rows - 1, 576, DType::kBF16));             // unlike shares
    EXPECT_FALSE(reducer.takes_shares(0, 576, DType::kBF16));
    EXPECT_FALSE(reducer.takes_shares(rows, 572, DType::kBF16));
    EXPECT_TRUE(reducer.takes_shares(group.size(), 8, DType::kBF16));
    EXPECT_FALSE(reducer.takes(rows, 576, DType::kBF16));
    const int64_t share = rows / group.size();
    const Tensor term = reducer.shared_term(group.rank(), rows, 576, DType::kBF16);
    const Tensor out = reducer.shared_out(rows, 576, DType::kBF16);
    ASSERT_TRUE(term && out);
    EXPECT_EQ(term.dim(0), share);
    EXPECT_EQ(out.dim(0), rows);
    EXPECT_EQ(term.dim(1), 576);
    EXPECT_EQ(term.device, site.backend().device());
    EXPECT_GE(std::abs(static_cast<std::byte*>(term.data) - static_cast<std::byte*>(out.data)), term.bytes());
    EXPECT_FALSE(reducer.shared_term(0, rows - 1, 576, DType::kBF16));
    EXPECT_FALSE(reducer.shared_out(rows - 1, 576, DType::kBF16));
  });
  const PeerLimits handing{.packets_bytes = 4096, .shared_bytes = 64 * 1152, .handed_bytes = 32 * 1152};
  run_with(GetParam(), handing, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    auto place = [&](int rank, int64_t rows) {
      return static_cast<std::byte*>(reducer.shared_term(rank, rows, 576, DType::kBF16).data);
    };
    const int64_t few = group.size();
    const int64_t many = (32 + group.size() - 1) / group.size() * group.size();
    const int64_t share_bytes = many / group.size() * 1152;
    const std::byte* at_home = place(0, many);
    for (int64_t rows : {few, many}) {
      for (int rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(place(rank, rows), at_home + rank * (rows / group.size()) * 1152);
    }
    reducer.hand_terms();
    EXPECT_EQ(place(1, few), place(0, few) + 1152);
    EXPECT_EQ(place(group.rank(), many), at_home + group.rank() * share_bytes);
    EXPECT_NE(place(1, many), place(0, many) + share_bytes);
  });
  run_with(GetParam(), PeerLimits{.packets_bytes = 4096}, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    EXPECT_FALSE(reducer.takes_shares(group.size(), 576, DType::kBF16));
    EXPECT_FALSE(reducer.shared_term(0, group.size(), 576, DType::kBF16));
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, P2pShares, testing::Values(2, 3, 4, 5, 8), [](const auto& instance) {
  return "With" + std::to_string(instance.param);
});

}  // namespace
}  // namespace llm_dist::comm
