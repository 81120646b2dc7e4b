// Norms of shares that keep their rows, which the products behind hand to the other ranks, beside the calls
// apart.
#include "tests/comm/shares_twin.h"

namespace llm_dist::comm {
namespace {

class P2pHandedRows : public testing::TestWithParam<int> {
 protected:
  void run(const RankBody& body) const {
    if (ranks_share_gpu()) GTEST_SKIP() << "products that hand rows wait on all processors";
    run_with(GetParam(), kSharedWays, body);
  }
  // Of the rank that leaves, the norm has come, and no product.
  void expect_abort_to_end_products(Between between) const {
    run([between](World& world, Site& site) {
      auto body = [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
        twin.restart();
        auto issue = [&] {
          for (int i = 0; i < 64; ++i) twin.shared(0, true);
        };
        auto issue_more = [&] { twin.shared(0, true); };
        const bool waiting = group.rank() != group.size() - 1;
        expect_abort_to_end(
            world,
            group,
            {.waiting = waiting, .issue = issue, .issue_more = issue_more, .issue_before_leaving = [&] {
               twin.norm_shares(0, true);
             }});
        EXPECT_EQ(twin.num_of_codes() > 0, waiting && between == Between::kCodesAndProduct);
      };
      with_twin<SharesTwin, BFloat16>(world, site, body, std::vector<ShareShape>{{512, 2048}}, between);
    });
  }
};

// Between calls that hand all rows out themselves, of the same shapes and of others; now one rank comes late
// to the norm, now one to the product behind it. Of many columns a block has several tiles of a rank's rows.
TEST_P(P2pHandedRows, KeepWhatProductsHand) {
  run([](World& world, Site& site) {
    auto check = [&](auto type, int64_t width, std::vector<int64_t> rows, Between between) {
      using T = decltype(type);
      std::vector<ShareShape> shapes;
      for (int64_t rows_of_rank : rows) shapes.push_back({rows_of_rank, width});
      auto body = [between](SharesTwin<T>& twin, GroupUnderTest& group) {
        for (unsigned seed = 1; seed <= 4; ++seed) {
          const std::vector<size_t> calls = calls_of(twin.num_shapes(), 60, seed + 60);
          std::mt19937 late(seed);
          auto is_late = [&] {
            return static_cast<int>(late() % static_cast<unsigned>(2 * group.size())) == group.rank();
          };
          twin.restart();
          for (size_t i = 0; i < calls.size(); ++i) {
            if (is_late()) twin.fall_behind(late() % 20);
            twin.shared(calls[i], (i + seed) % 4 != 0, is_late() ? late() % 20 : 0);
          }
          for (size_t shape : calls) twin.apart(shape);
          twin.expect_alike();
        }
        EXPECT_GT(twin.num_kept(), 60);
        EXPECT_EQ(twin.num_of_codes() > 60, between == Between::kCodesAndProduct);
      };
      with_twin<SharesTwin, T>(world, site, body, shapes, between);
    };
    check(BFloat16{}, 2048, {512, 3, 1024, 513, 1536}, Between::kTwoProducts);
    check(Float16{}, 2304, {512, 130, 1536}, Between::kTwoProducts);  // tiles of another width
    check(BFloat16{}, 4096, {512, 1024}, Between::kTwoProducts);
    check(BFloat16{}, 2048, {512, 1024, 513}, Between::kGatedAndProduct);
    check(BFloat16{}, 2048, {512, 3, 1024, 513}, Between::kCodesAndProduct);
    check(Float16{}, 2304, {512, 1024, 130}, Between::kCodesAndProduct);
  });
}

TEST_P(P2pHandedRows, GraphsReplayProductsThatHandRows) {
  run([](World& world, Site& site) {
    auto body = [&](SharesTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<size_t> calls = calls_of(twin.num_shapes(), 12, 5);
      auto issue = [&] {
        for (size_t i = 0; i < calls.size(); ++i) {
          twin.shared(calls[i], i % 3 != 0);
          twin.apart(calls[i]);
        }
      };
      replay_in_graph(world,
                      site,
                      group,
                      {.issue = issue,
                       .restart = [&] { twin.restart(); },
                       .expect = [&] { twin.expect_alike(); },
                       .rounds = 10,
                       .replays = 5});
    };
    with_twin<SharesTwin, BFloat16>(
        world, site, body, std::vector<ShareShape>{{512, 2048}, {1024, 2048}}, Between::kCodesAndProduct);
    // Nothing hands the small one. Of 65 to 255 rows the whole would be divided otherwise than its shares,
    // which are products of their own, and have other bits.
    const std::vector<ShareShape> shapes = {{512, 2048}, {3, 2048}, {1024, 2048}};
    with_twin<SharesTwin, BFloat16>(world, site, body, shapes, Between::kTwoProducts);
  });
}

TEST_P(P2pHandedRows, AnAbortEndsProductsThatWaitForRows) {
  expect_abort_to_end_products(Between::kTwoProducts);
}
TEST_P(P2pHandedRows, AnAbortEndsProductsThatWaitForCodes) {
  expect_abort_to_end_products(Between::kCodesAndProduct);
}

INSTANTIATE_TEST_SUITE_P(Gpus, P2pHandedRows, testing::Values(2, 3, 4, 5, 8), [](const auto& instance) {
  return "With" + std::to_string(instance.param);
});

}  // namespace
}  // namespace llm_dist::comm
