// Sums with a norm behind them whose terms the products send that make them, beside the calls apart: bit by
// bit, among ranks of which some send so and some do not.
#include <gtest/gtest.h>

#include <random>

#include "comm/norm_reducer.h"
#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {
namespace {

constexpr int64_t kMostRows = 64;
constexpr int64_t kMostHidden = 8192;
constexpr int64_t kFeatures = 256;  // of the products' x
constexpr int64_t kBehind = 520;    // of what the product behind makes

// Who takes a single row that is sent: the product behind it, or no product stands there and the norm does
// either as an op or as the group's call.
enum class Taker : uint8_t { kProduct, kNorm, kGroup };

struct TermCall {
  int64_t rows = 0;
  int64_t hidden = 0;
  bool sends = false;  // as far as there is a kernel that does
  Taker taker = Taker::kGroup;
};

template <typename T>
class TermTwin {
 public:
  TermTwin(Site& site, GroupUnderTest& group)
      : group_(group),
        reducer_(dynamic_cast<NormReducer&>(*group.comm)),
        state_(cuda_module()
                   .value()
                   ->ops->make_state(site.backend(), {.max_tokens = kMostRows, .max_features = kMostHidden})
                   .value()),
        x_(site, kMostRows * kFeatures),
        matrix_(site, kMostHidden * kBehind),
        weight_(site, kMostHidden) {
    for (int i = 0; i < 2; ++i) {
      behind_.emplace_back(site, kBehind);
      term_.emplace_back(site, kMostRows * kMostHidden);
      residual_.emplace_back(site, kMostRows * kMostHidden);
    }
    const auto rank = static_cast<uint64_t>(group.rank());
    for (int64_t i = 0; i < x_.size(); ++i) x_[i] = scattered_value<T>(rank + 1, i);
    for (int64_t i = 0; i < matrix_.size(); ++i) matrix_[i] = scattered_value<T>(rank + 11, i);
    for (int64_t i = 0; i < weight_.size(); ++i) weight_[i] = scattered_value<T>(77, i);
    for (SiteTensor<T>* tensor : {&x_, &matrix_, &weight_}) tensor->upload(*group.stream);
  }

  void restart() {
    for (int i = 0; i < 2; ++i) {
      SiteTensor<T>& residual = residual_[static_cast<size_t>(i)];
      for (int64_t k = 0; k < residual.size(); ++k) residual[k] = scattered_value<T>(99, k);
      residual.upload(*group_.stream);
      behind_[static_cast<size_t>(i)].upload(*group_.stream);
      term_[static_cast<size_t>(i)].upload(*group_.stream);
    }
    num_sent_ = 0;
  }
  int num_sent() const { return num_sent_; }

  void together(const TermCall& call) {
    const kernels::AddRmsNormParams norm = add_norm(0, call);
    const device::PeerTerms terms = reducer_.terms(call.rows, call.hidden, DTypeOf<T>::kValue);
    bool sent = false;
    if (call.sends && terms.size > 0) {
      sent = ops().linear_terms(*state_, *group_.stream, {product(0, call), terms});
    } else {
      ops().linear(*state_, *group_.stream, product(0, call));
    }
    num_sent_ += sent ? 1 : 0;
    const bool by_op = sent && call.rows == 1 && call.taker != Taker::kGroup;
    if (!by_op || !ops().add_rms_norm_of_terms(*state_, *group_.stream, {norm, terms})) {
      reducer_.all_reduce_add_rms_norm({.x = norm.x,
                                        .residual = norm.residual,
                                        .weight = norm.weight,
                                        .epsilon = norm.epsilon,
                                        .out = norm.out,
                                        .sent = sent},
                                       *group_.stream);
    } else if (call.taker == Taker::kProduct) {
      ops().linear(*state_, *group_.stream, product_behind(0, call));
    }
    by_product_ = by_op && call.taker == Taker::kProduct;
  }
  // by_product: as together() has done. A norm that a product makes adds up in another order than one by
  // itself.
  void apart(const TermCall& call, bool by_product) {
    ops().linear(*state_, *group_.stream, product(1, call));
    group_.comm->all_reduce(rows(term_[1], call), ReduceOp::kSum, *group_.stream);
    ops().add_rms_norm(*state_, *group_.stream, add_norm(1, call));
    if (by_product) ops().linear(*state_, *group_.stream, product_behind(1, call));
  }
  void both(const TermCall& call) {
    together(call);
    apart(call, by_product_);
  }
  // All of them one way, then the other.
  void both(const std::vector<TermCall>& calls) {
    std::vector<bool> by_product;
    for (const TermCall& call : calls) {
      together(call);
      by_product.push_back(by_product_);
    }
    for (size_t i = 0; i < calls.size(); ++i) apart(calls[i], by_product[i]);
  }
  void expect_alike() {
    for (int i = 0; i < 2; ++i) {
      term_[static_cast<size_t>(i)].download(*group_.stream);
      residual_[static_cast<size_t>(i)].download(*group_.stream);
      behind_[static_cast<size_t>(i)].download(*group_.stream);
    }
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    EXPECT_EQ(first_difference(term_[0], [&](int64_t i) { return as_double(term_[1][i]); }), -1);
    EXPECT_EQ(first_difference(residual_[0], [&](int64_t i) { return as_double(residual_[1][i]); }), -1);
    EXPECT_EQ(first_difference(behind_[0], [&](int64_t i) { return as_double(behind_[1][i]); }), -1);
  }

 private:
  static const kernels::OpTable& ops() { return *cuda_module().value()->ops; }
  Tensor rows(const SiteTensor<T>& tensor, const TermCall& call) const {
    return tensor.view(0, call.rows * call.hidden).reshaped({call.rows, call.hidden});
  }
  kernels::LinearParams product(size_t way, const TermCall& call) const {
    return {.x = x_.view(0, call.rows * kFeatures).reshaped({call.rows, kFeatures}),
            .weight = weight_of(call.hidden, kFeatures),
            .bias = {},
            .out = rows(term_[way], call)};
  }
  kernels::LinearParams product_behind(size_t way, const TermCall& call) const {
    return {.x = rows(term_[way], call),
            .weight = weight_of(kBehind, call.hidden),
            .bias = {},
            .out = behind_[way].view(0, kBehind).reshaped({1, kBehind})};
  }
  Weight weight_of(int64_t n, int64_t k) const {
    Weight weight{.scheme = scheme_of(DTypeOf<T>::kValue), .n = n, .k = k};
    const Tensor matrix = matrix_.view(0, n * k);
    weight.parts[0] = Tensor::contiguous(matrix.data, DType::kU8, {n, k * 2}, matrix.device);
    return weight;
  }
  kernels::AddRmsNormParams add_norm(size_t way, const TermCall& call) const {
    return {.x = rows(term_[way], call),
            .residual = rows(residual_[way], call),
            .weight = weight_.view(0, call.hidden),
            .epsilon = 1e-5f,
            .out = rows(term_[way], call)};
  }

  GroupUnderTest& group_;
  NormReducer& reducer_;
  std::unique_ptr<kernels::OpState> state_;
  SiteTensor<T> x_;
  SiteTensor<T> matrix_;
  SiteTensor<T> weight_;
  std::vector<SiteTensor<T>> term_;  // [0] together, [1] apart
  std::vector<SiteTensor<T>> residual_;
  std::vector<SiteTensor<T>> behind_;
  int num_sent_ = 0;
  bool by_product_ = false;  // the last call together
};

// The same shapes on every rank. What a rank sends so, and takes how, is its own affair: `rank` decides.
std::vector<TermCall> term_calls(int count, unsigned seed, int rank) {
  constexpr int64_t kHidden[] = {576, 4096, 5120, 8192};
  std::mt19937 shapes(seed);
  std::mt19937 sends(seed + 100 * static_cast<unsigned>(rank));
  std::vector<TermCall> calls;
  for (int i = 0; i < count; ++i) {
    const int64_t rows = shapes() % 3 == 0 ? 1 : 1 + shapes() % (shapes() % 2 == 0 ? 8 : kMostRows);
    calls.push_back({.rows = rows,
                     .hidden = kHidden[shapes() % 4],
                     .sends = sends() % 3 != 0,
                     .taker = static_cast<Taker>(sends() % 3)});
  }
  return calls;
}

class P2pTerms : public OverWays {
 protected:
  void SetUp() override {
    if (ranks_share_gpu()) GTEST_SKIP() << "no rank sends its terms so where another has the same GPU";
  }
};

TEST_P(P2pTerms, SentByProductsOnSomeRanks) {
  run([](World& world, Site& site) {
    auto check = [&](auto type) {
      using T = decltype(type);
      with_twin<TermTwin, T>(world, site, [](TermTwin<T>& twin, GroupUnderTest& group) {
        for (unsigned seed = 1; seed <= 4; ++seed) {
          twin.restart();
          for (const TermCall& call : term_calls(200, seed, group.rank())) twin.both(call);
          twin.expect_alike();
        }
        EXPECT_GT(twin.num_sent(), 50);
      });
    };
    check(BFloat16{});
    check(Float16{});
  });
}

// Nothing between them.
TEST_P(P2pTerms, OneAfterTheOther) {
  run([](World& world, Site& site) {
    with_twin<TermTwin, BFloat16>(world, site, [](TermTwin<BFloat16>& twin, GroupUnderTest& group) {
      for (unsigned seed = 11; seed <= 14; ++seed) {
        const std::vector<TermCall> calls = term_calls(200, seed, group.rank());
        twin.restart();
        twin.both(calls);
        twin.expect_alike();
      }
    });
  });
}

TEST_P(P2pTerms, InGraphs) {
  run([](World& world, Site& site) {
    with_twin<TermTwin, BFloat16>(world, site, [&](TermTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<TermCall> calls = term_calls(33, 5, group.rank());
      auto issue = [&] { twin.both(calls); };
      issue();  // so that it is known which kernels send
      replay_in_graph(world,
                      site,
                      group,
                      {.issue = issue,
                       .restart = [&] { twin.restart(); },
                       .expect = [&] { twin.expect_alike(); },
                       .rounds = 10,
                       .replays = 10});
    });
  });
}

TEST_P(P2pTerms, AnAbortEndsWaitingKernels) {
  run([](World& world, Site& site) {
    with_twin<TermTwin, BFloat16>(world, site, [&](TermTwin<BFloat16>& twin, GroupUnderTest& group) {
      const std::vector<TermCall> calls = term_calls(20, 7, 0);
      twin.restart();
      for (const TermCall& call : calls) twin.both(call);  // so that it is known which kernels send
      const bool waiting = group.rank() != group.size() - 1;
      auto issue = [&] {
        for (const TermCall& call : calls) twin.together(call);
      };
      auto issue_more = [&] { twin.together({.rows = 1, .hidden = 576, .sends = true}); };
      expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
    });
  });
}

constexpr PeerLimits kTerms{
    .packets_bytes = kEverything, .norm_bytes = kEverything, .norm_one_trip_bytes = kEverything};
constexpr PeerLimits kTermsOfParts{.packets_bytes = kEverything, .norm_bytes = kEverything};
constexpr Ways kTermWays[] = {{"OneTrip", kTerms}, {"TwoTrips", kTermsOfParts}, {"Defaults", std::nullopt}};

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2pTerms,
                         testing::Combine(testing::Values(2, 3, 4, 5, 8), testing::ValuesIn(kTermWays)),
                         name_of_ways);

}  // namespace
}  // namespace llm_dist::comm
