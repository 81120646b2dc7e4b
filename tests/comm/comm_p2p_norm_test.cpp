// All-reduces whose sums go into the residual stream and the norm in one kernel, beside the calls apart.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "comm/nccl_loader.h"
#include "comm/norm_reducer.h"
#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {
namespace {

constexpr int64_t kNormElements = 256 * 8192;

struct NormShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t elements() const { return rows * hidden; }
};

// One rank's x and residual stream, once for each of the two ways.
template <typename T>
class NormTwin {
 public:
  NormTwin(Site& site, GroupUnderTest& group)
      : group_(group),
        reducer_(dynamic_cast<NormReducer&>(*group.comm)),
        state_(cuda_module().value()->ops->make_state(site.backend(), {.max_tokens = 256}).value()),
        terms_(site, kNormElements),
        weight_(site, 8192) {
    for (int i = 0; i < 2; ++i) {
      x_.emplace_back(site, kNormElements);
      residual_.emplace_back(site, kNormElements);
    }
    for (int64_t i = 0; i < kNormElements; ++i)
      terms_[i] = scattered_value<T>(static_cast<uint64_t>(group.rank()) + 1, i);
    for (int64_t i = 0; i < weight_.size(); ++i) weight_[i] = scattered_value<T>(77, i);
    terms_.upload(*group.stream);
    weight_.upload(*group.stream);
  }

  NormReducer& reducer() { return reducer_; }

  void restart() {
    for (SiteTensor<T>& residual : residual_) {
      for (int64_t i = 0; i < kNormElements; ++i) residual[i] = scattered_value<T>(99, i);
      residual.upload(*group_.stream);
    }
    for (SiteTensor<T>& x : x_) x.upload(*group_.stream);
  }
  void take_terms(NormShape shape, int64_t from) {
    for (SiteTensor<T>& x : x_)
      group_.stream->copy(x.view(0, shape.elements()), terms_.view(from, shape.elements()));
  }
  // All bits of every other word are set.
  void spoil_terms(NormShape shape) {
    SiteTensor<T>& x = x_[0];
    for (int64_t i = 0; i < shape.elements(); ++i) {
      if (i % 4 < 2) std::memset(&x[i], 0xff, sizeof(T));
    }
    x.upload(*group_.stream);
  }
  // Every element of a row's norm is none when one of the row is.
  void expect_nothing_but_nan(NormShape shape) {
    x_[0].download(*group_.stream);
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    for (int64_t i = 0; i < shape.elements(); ++i) ASSERT_TRUE(std::isnan(as_double(x_[0][i]))) << i;
  }
  void fused(NormShape shape) {
    reducer_.all_reduce_add_rms_norm({.x = rows(x_[0], shape),
                                      .residual = rows(residual_[0], shape),
                                      .weight = weight_.view(0, shape.hidden),
                                      .epsilon = 1e-5f,
                                      .out = rows(x_[0], shape)},
                                     *group_.stream);
  }
  void apart(NormShape shape) {
    group_.comm->all_reduce(rows(x_[1], shape), ReduceOp::kSum, *group_.stream);
    cuda_module().value()->ops->add_rms_norm(*state_,
                                             *group_.stream,
                                             {.x = rows(x_[1], shape),
                                              .residual = rows(residual_[1], shape),
                                              .weight = weight_.view(0, shape.hidden),
                                              .epsilon = 1e-5f,
                                              .out = rows(x_[1], shape)});
  }
  // All of both, what lies behind the rows included.
  void expect_alike() {
    for (int i = 0; i < 2; ++i) {
      x_[static_cast<size_t>(i)].download(*group_.stream);
      residual_[static_cast<size_t>(i)].download(*group_.stream);
    }
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    EXPECT_EQ(first_difference(x_[0], [&](int64_t i) { return as_double(x_[1][i]); }), -1);
    EXPECT_EQ(first_difference(residual_[0], [&](int64_t i) { return as_double(residual_[1][i]); }), -1);
  }
  // One call each way, of the first terms.
  void compare(NormShape shape) {
    restart();
    take_terms(shape, 0);
    fused(shape);
    apart(shape);
    expect_alike();
  }

 private:
  Tensor rows(const SiteTensor<T>& tensor, NormShape shape) const {
    return tensor.view(0, shape.elements()).reshaped({shape.rows, shape.hidden});
  }

  GroupUnderTest& group_;
  NormReducer& reducer_;
  std::unique_ptr<kernels::OpState> state_;
  SiteTensor<T> terms_;
  SiteTensor<T> weight_;
  std::vector<SiteTensor<T>> x_;  // [0] fused, [1] apart
  std::vector<SiteTensor<T>> residual_;
};

// Calls of many shapes: with terms of this rank, or with what the call before has left in x.
struct NormCall {
  NormShape shape;
  int64_t from = -1;  // in the terms
};

std::vector<NormCall> norm_calls(int count, unsigned seed, int64_t most_rows) {
  constexpr int64_t kHidden[] = {576, 4096, 8192, 8, 5120, 4680, 8000};
  std::mt19937 generator(seed);
  auto below = [&](int64_t end) { return std::uniform_int_distribution<int64_t>(0, end - 1)(generator); };
  std::vector<NormCall> calls;
  for (int i = 0; i < count; ++i) {
    NormCall call;
    call.shape.rows = 1 + below(below(3) == 0 ? most_rows : 4);
    call.shape.hidden = kHidden[below(std::size(kHidden))];
    if (below(3) != 0) call.from = 8 * below((kNormElements - call.shape.elements()) / 8 + 1);
    calls.push_back(call);
  }
  return calls;
}

class P2pNorm : public OverWays {
 protected:
  static constexpr int kMostSharingNorms = 4;  // their blocks are few
  // Of the longest rows, for all ranks' but one's to have room on a GPU that they share.
  int64_t most_rows() const {
    if (!ranks_share_gpu()) return 256;
    if (num_ranks() == 2) return 128;
    return num_ranks() == 3 ? 65 : 16;
  }
  void run(const RankBody& body) const { OverWays::run(body, kMostSharingNorms); }
};

TEST_P(P2pNorm, HasTheBitsOfTheCallsApart) {
  run([this](World& world, Site& site) {
    auto check = [&](auto type) {
      using T = decltype(type);
      with_twin<NormTwin, T>(world, site, [this](NormTwin<T>& twin, GroupUnderTest&) {
        for (int64_t hidden : {8, 576, 4096, 4104, 4680, 5120, 8000, 8192}) {
          for (int64_t rows : {1, 2, 3, 7, 16, 65, 128, 129, 256}) {
            if (rows > most_rows()) continue;
            const NormShape shape{rows, hidden};
            SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(hidden));
            ASSERT_TRUE(twin.reducer().takes(rows, hidden, DTypeOf<T>::kValue));
            twin.compare(shape);
          }
        }
      });
    };
    check(BFloat16{});
    check(Float16{});
  });
}

// Of the norm's kernels and of those in front of them.
TEST_P(P2pNorm, HasTheSameBitsWithoutEarlyStarts) {
  cuda_module().value()->allow_early_starts(false);
  open_nccl_module().value()->allow_early_starts(false);
  run([this](World& world, Site& site) {
    with_twin<NormTwin, BFloat16>(world, site, [this](NormTwin<BFloat16>& twin, GroupUnderTest&) {
      for (int64_t rows : {1, 16, 65}) {
        if (rows > most_rows()) continue;
        twin.compare({rows, 4096});
      }
    });
  });
  cuda_module().value()->allow_early_starts(true);
  open_nccl_module().value()->allow_early_starts(true);
}

// What says that a word has not come may be a term: two numbers that are none. They come, as such.
TEST_P(P2pNorm, TermsThatAreNotNumbers) {
  run([](World& world, Site& site) {
    with_twin<NormTwin, BFloat16>(world, site, [](NormTwin<BFloat16>& twin, GroupUnderTest&) {
      twin.restart();
      for (int64_t rows : {1, 5}) {
        const NormShape shape{rows, 4096};
        twin.spoil_terms(shape);
        twin.fused(shape);
        twin.expect_nothing_but_nan(shape);
      }
    });
  });
}

// Some hundred calls that no host waits for, alone and between all-reduces.
TEST_P(P2pNorm, CallsOfAllShapesBackToBack) {
  if (ranks_share_gpu())
    GTEST_SKIP() << "does not end in time where ranks share a GPU, with 100 calls neither";
  run([this](World& world, Site& site) {
    with_twin<NormTwin, BFloat16>(world, site, [this](NormTwin<BFloat16>& twin, GroupUnderTest&) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        const std::vector<NormCall> calls = norm_calls(300, seed, most_rows());
        twin.restart();
        for (const NormCall& call : calls) {
          if (call.from >= 0) twin.take_terms(call.shape, call.from);
          if (seed % 2 == 0) twin.apart(call.shape);
          twin.fused(call.shape);
          if (seed % 2 == 1) twin.apart(call.shape);
        }
        twin.expect_alike();
      }
      // The same calls one way, then the other.
      const std::vector<NormCall> calls = norm_calls(300, 5, most_rows());
      twin.restart();
      for (const NormCall& call : calls) twin.fused(call.shape);
      for (const NormCall& call : calls) twin.apart(call.shape);
      twin.expect_alike();
    });
  });
}

TEST_P(P2pNorm, GraphsReplayManyTimes) {
  run([this](World& world, Site& site) {
    with_twin<NormTwin, BFloat16>(world, site, [&](NormTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<NormCall> calls = norm_calls(65, 3, most_rows());
      auto issue = [&] {
        for (const NormCall& call : calls) {
          if (call.from >= 0) twin.take_terms(call.shape, call.from);
          twin.fused(call.shape);
          twin.apart(call.shape);
        }
      };
      replay_in_graph(world,
                      site,
                      group,
                      {.issue = issue,
                       .restart = [&] { twin.restart(); },
                       .expect = [&] { twin.expect_alike(); },
                       .rounds = 20,
                       .replays = 10});
    });
  });
}

TEST_P(P2pNorm, AnAbortEndsWaitingKernels) {
  run([this](World& world, Site& site) {
    with_twin<NormTwin, BFloat16>(world, site, [&](NormTwin<BFloat16>& twin, GroupUnderTest& group) {
      twin.restart();
      auto issue = [&] {
        for (const NormCall& call : norm_calls(64, 9, most_rows())) twin.fused(call.shape);
      };
      auto issue_more = [&] { twin.fused({1, 576}); };
      const bool waiting = group.rank() != group.size() - 1;
      expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
    });
  });
}

class P2pNormLimits : public testing::TestWithParam<int> {};

TEST_P(P2pNormLimits, TakesWhatItsKernelIsFor) {
  const PeerLimits limits{.packets_bytes = 4096, .norm_bytes = 64 * 1152};
  run_with(GetParam(), limits, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto& reducer = dynamic_cast<NormReducer&>(*group.comm);
    EXPECT_TRUE(reducer.takes(64, 576, DType::kBF16));
    EXPECT_TRUE(reducer.takes(64, 576, DType::kF16));
    EXPECT_FALSE(reducer.takes(64, 576, DType::kF32));
    EXPECT_FALSE(reducer.takes(65, 576, DType::kBF16));  // more bytes than the limit
    EXPECT_TRUE(reducer.takes(256, 8, DType::kBF16));
    EXPECT_FALSE(reducer.takes(257, 8, DType::kBF16));
    EXPECT_FALSE(reducer.takes(1, 577, DType::kBF16));
    EXPECT_TRUE(reducer.takes(1, 8192, DType::kBF16));
    EXPECT_FALSE(reducer.takes(1, 8200, DType::kBF16));
  });
  run_with(GetParam(), PeerLimits{.packets_bytes = 4096}, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    EXPECT_FALSE(dynamic_cast<NormReducer&>(*group.comm).takes(1, 576, DType::kBF16));
  });
}

constexpr PeerLimits kNorms{.packets_bytes = kEverything, .norm_bytes = kEverything};
constexpr PeerLimits with_one_trip_up_to(int64_t bytes) {
  PeerLimits limits = kNorms;
  limits.norm_one_trip_bytes = bytes;
  return limits;
}
constexpr Ways kTrips[] = {{"OneTrip", with_one_trip_up_to(kEverything)},
                           {"TwoTrips", with_one_trip_up_to(0)},
                           {"BothTrips", with_one_trip_up_to(16 << 10)}};

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2pNorm,
                         testing::Combine(testing::Values(2, 3, 4, 5, 8), testing::ValuesIn(kTrips)),
                         name_of_ways);
INSTANTIATE_TEST_SUITE_P(Gpus, P2pNormLimits, testing::Values(2, 3, 4), [](const auto& instance) {
  return "With" + std::to_string(instance.param);
});

}  // namespace
}  // namespace llm_dist::comm
