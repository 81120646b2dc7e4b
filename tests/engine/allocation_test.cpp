// A steady-state step allocates nothing: counted by kind of thread over a thousand decode steps.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>

#include "tests/base/allocation_count.h"
#include "tests/golden/golden_case.h"

namespace llm_dist::engine {
namespace {

enum Kind : int { kEngine, kFollower, kStream, kNumKinds };
std::atomic<int64_t> allocations[kNumKinds];

constexpr int kWarmUpTokens = 100;
constexpr int kTokens = 1160;

struct Counts {
  int64_t of[kNumKinds] = {};
  static Counts now() {
    Counts counts;
    for (int kind = 0; kind < kNumKinds; ++kind) counts.of[kind] = allocations[kind].load();
    return counts;
  }
};

// Notes the counts at two of its tokens, on the step thread.
class CountingSink : public SequenceSink {
 public:
  void on_generated(const Generated& generated) override {
    if (generated.token >= 0) ++num_tokens_;
    if (num_tokens_ == kWarmUpTokens) begin_ = Counts::now();
    if (num_tokens_ == kTokens - 50) end_ = Counts::now();
    if (generated.finish != sched::FinishReason::kNone) ended_ = true;
  }
  bool ended() const { return ended_; }
  int64_t between(Kind kind) const { return end_.of[kind] - begin_.of[kind]; }

 private:
  int num_tokens_ = 0;
  Counts begin_;
  Counts end_;
  std::atomic<bool> ended_{false};
};

class Allocations : public testing::TestWithParam<parallel::Layout> {};
INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Allocations,
    testing::Values(parallel::Layout{}, parallel::Layout{.tp = 2}, parallel::Layout{.tp = 1, .pp = 2}),
    [](const auto& named) {
      return "tp" + std::to_string(named.param.tp) + "pp" + std::to_string(named.param.pp);
    });

TEST_P(Allocations, NoneInAThousandDecodeSteps) {
  GoldenCase golden = load_golden("multiquery");
  ReplicaOptions options{.engine = golden_options(GetParam())};
  options.engine.max_model_len = kTokens + 20;
  options.engine.num_blocks = 2 * (kTokens + 20) / 4 + 8;
  options.hooks = [](int rank) {
    return EngineHooks{.on_phase = [rank](const char*) {
      count_allocations_in(allocations[rank == 0 ? kEngine : kFollower]);
    }};
  };
  options.before_task = [](const std::string&, uint64_t) { count_allocations_in(allocations[kStream]); };
  auto replica = Replica::start(*golden.checkpoint, options);
  ASSERT_TRUE(replica.ok()) << replica.status().to_string();
  auto greedy = std::make_shared<CountingSink>();
  auto sampled = std::make_shared<CountingSink>();
  ASSERT_TRUE((*replica)->engine().submit(greedy_request({3, 4, 5}, kTokens), greedy).ok());
  auto request = greedy_request({6, 7, 8, 9}, kTokens);
  request.sampling.temperature = 0.8f;
  request.sampling.top_p = 0.9f;
  ASSERT_TRUE((*replica)->engine().submit(request, sampled).ok());
  for (auto deadline = Deadline::after_seconds(120);
       !deadline.expired() && !(greedy->ended() && sampled->ended());)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_TRUE(greedy->ended() && sampled->ended());
  EXPECT_GT(Counts::now().of[kEngine], 0) << "nothing was counted at all";
  EXPECT_EQ(greedy->between(kEngine), 0) << "on the step thread";
  EXPECT_EQ(greedy->between(kFollower), 0) << "on the other ranks' step threads";
  // Kernels and communicators run there; libraries that allocate would show here.
  std::printf("on streams: %lld\n", static_cast<long long>(greedy->between(kStream)));
  EXPECT_EQ(greedy->between(kStream), 0) << "on the streams' threads";
}

}  // namespace
}  // namespace llm_dist::engine
