// Every layout against what Hugging Face transformers says: the same greedy tokens, the same logits.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>
#include <set>

#include "src/device/cpu/cpu_stream.h"
#include "tests/golden/golden_case.h"

namespace llm_dist::engine {
namespace {

// Largest absolute difference of a logit. f32 differs in the order of sums only; bf16 activations have 8
// bits.
constexpr double kToleranceF32 = 1e-3;
constexpr double kToleranceBf16 = 0.3;

struct Comparison {
  double logits_error = 0.0;
  int different_tokens = 0;
};

struct Setup {
  EngineOptions options;
  const kernels::OpTable* ops = &kernels::cpu_ops();
  kernels::OpObserver* observer = nullptr;  // of rank 0
};

Comparison compare(const GoldenCase& golden, const Setup& setup) {
  LogitsRecorder recorder(setup.options.layout, golden.vocab_size());
  auto hooks = [&](int rank) {
    EngineHooks hooks_of_rank = recorder.hooks(rank);
    if (rank == 0) hooks_of_rank.observer = setup.observer;
    return hooks_of_rank;
  };
  auto replica =
      Replica::start(*golden.checkpoint, {.engine = setup.options, .ops = setup.ops, .hooks = hooks});
  CHECK(replica.ok(), "{}", replica.status().to_string());
  std::vector<sched::SequenceRequest> requests;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    requests.push_back(greedy_request(golden.prompts[i], static_cast<int32_t>(golden.steps()), i));
  }
  std::vector<Output> outputs = (*replica)->generate(std::move(requests));
  for (const Status& end : (*replica)->stop()) EXPECT_TRUE(end.ok()) << end.to_string();

  Comparison result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].finish, sched::FinishReason::kLength);
    auto prompt_len = static_cast<int64_t>(golden.prompts[i].size());
    for (int64_t step = 0; step < golden.steps(); ++step) {
      std::vector<float> row = recorder.row(i, prompt_len + step);
      EXPECT_EQ(row.size(), static_cast<size_t>(golden.vocab_size()));
      for (size_t v = 0; v < row.size(); ++v) {
        double error = std::abs(static_cast<double>(row[v]) - golden.logits_at(i, step)[v]);
        result.logits_error = std::max(result.logits_error, error);
      }
      // Behind the first different token the inputs differ too.
      if (outputs[i].tokens[static_cast<size_t>(step)] != golden.tokens[i][static_cast<size_t>(step)]) {
        ++result.different_tokens;
        break;
      }
    }
  }
  return result;
}

struct LayoutCase {
  parallel::Layout layout;
  bool async = true;
};

std::vector<LayoutCase> layouts(const GoldenCase& golden) {
  std::vector<LayoutCase> cases;
  for (auto [tp, pp] : {std::pair{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 4}, {2, 2}, {2, 3}}) {
    if (tp > golden.checkpoint->config().num_heads || pp > golden.checkpoint->config().num_layers) continue;
    cases.push_back({{.tp = tp, .pp = pp}, true});
    if (tp > 1) cases.push_back({{.tp = tp, .pp = pp, .sequence_parallel = true}, true});
    if (tp < 3 && pp < 3)
      cases.push_back({{.tp = tp, .pp = pp, .sequence_parallel = tp > 1 && pp > 1}, false});
  }
  return cases;
}

class Golden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models,
                         Golden,
                         testing::Values("grouped", "llama3", "multiquery"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(Golden, EveryLayoutInSinglePrecision) {
  GoldenCase golden = load_golden(GetParam());
  ASSERT_GE(golden.gap, 10 * kToleranceF32);
  for (const LayoutCase& test : layouts(golden)) {
    SCOPED_TRACE(to_string(test.layout) + (test.async ? "" : ", plain loop"));
    EngineOptions options = golden_options(test.layout);
    options.async_scheduling = test.async;
    Comparison got = compare(golden, {.options = options});
    EXPECT_EQ(got.different_tokens, 0);
    EXPECT_LE(got.logits_error, kToleranceF32);
  }
}

TEST_P(Golden, EveryLayoutInBf16) {
  GoldenCase golden = load_golden(GetParam());
  ASSERT_GE(golden.gap, 10 * kToleranceBf16) << "greedy tokens would hang on rounding";
  double worst = 0.0;
  for (const LayoutCase& test : layouts(golden)) {
    if (!test.async) continue;
    SCOPED_TRACE(to_string(test.layout));
    Comparison got = compare(golden, {.options = golden_options(test.layout, DType::kBF16)});
    EXPECT_EQ(got.different_tokens, 0);
    EXPECT_LE(got.logits_error, kToleranceBf16);
    worst = std::max(worst, got.logits_error);
  }
  RecordProperty("worst_logits_error", std::to_string(worst));
}

}  // namespace
}  // namespace llm_dist::engine
