// Every layout against what Hugging Face transformers says: the same greedy tokens, the same logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "src/device/cpu/cpu_stream.h"
#include "tests/golden/golden_case.h"

namespace llm_dist::engine {
namespace {

// Largest absolute difference of a logit. f32 differs in the order of sums only; bf16 activations have 8
// bits.
constexpr double kToleranceF32 = 1e-4;
constexpr double kToleranceBf16 = 0.2;
constexpr double kToleranceF8 = 1.0;

struct Comparison {
  double logits_error = 0.0;
  double mean_error = 0.0;
  int different_tokens = 0;
  std::vector<float> logits;  // as GoldenCase::logits
  std::vector<std::vector<int32_t>> tokens;
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
  double sum = 0.0;
  int64_t compared = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_EQ(outputs[i].finish, sched::FinishReason::kLength);
    result.tokens.push_back(outputs[i].tokens);
    auto prompt_len = static_cast<int64_t>(golden.prompts[i].size());
    bool same = true;
    for (int64_t step = 0; step < golden.steps(); ++step) {
      std::vector<float> row = recorder.row(i, prompt_len + step);
      EXPECT_EQ(row.size(), static_cast<size_t>(golden.vocab_size()));
      result.logits.insert(result.logits.end(), row.begin(), row.end());
      if (!same) continue;
      for (size_t v = 0; v < row.size(); ++v) {
        double error = std::abs(static_cast<double>(row[v]) - golden.logits_at(i, step)[v]);
        result.logits_error = std::max(result.logits_error, error);
        sum += error;
        ++compared;
      }
      // Behind the first different token the inputs differ too.
      same = outputs[i].tokens[static_cast<size_t>(step)] == golden.tokens[i][static_cast<size_t>(step)];
      if (!same) ++result.different_tokens;
    }
  }
  result.mean_error = compared == 0 ? 0.0 : sum / static_cast<double>(compared);
  return result;
}

struct LayoutCase {
  parallel::Layout layout;
  bool async = true;
};

std::vector<LayoutCase> layouts(const GoldenCase& golden) {
  std::vector<LayoutCase> cases;
  for (auto [tp, pp] : {std::pair{1, 1},
                        {2, 1},
                        {3, 1},
                        {4, 1},
                        {8, 1},
                        {1, 2},
                        {1, 4},
                        {1, 8},
                        {2, 2},
                        {2, 3},
                        {2, 4},
                        {4, 2}}) {
    if (tp > golden.checkpoint->config().num_heads || pp > golden.checkpoint->config().num_layers) continue;
    cases.push_back({{.tp = tp, .pp = pp}, true});
    if (tp > 1) cases.push_back({{.tp = tp, .pp = pp, .sequence_parallel = true}, true});
    // Groups without a kernel for norms of shares agree to do without.
    if (tp > 1 && pp < 3) cases.push_back({{.tp = tp, .pp = pp, .sequence_parallel_from = 4}, true});
    if (tp < 3 && pp < 3)
      cases.push_back({{.tp = tp, .pp = pp, .sequence_parallel = tp > 1 && pp > 1}, false});
  }
  return cases;
}

class Golden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models,
                         Golden,
                         testing::Values("grouped", "llama3", "multiquery", "wide_heads"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(Golden, EveryLayoutInSinglePrecision) {
  GoldenCase golden = load_golden(GetParam());
  ASSERT_GE(golden.gap, 10 * kToleranceF32);
  double worst = 0.0;
  for (const LayoutCase& test : layouts(golden)) {
    SCOPED_TRACE(to_string(test.layout) + (test.async ? "" : ", plain loop"));
    EngineOptions options = golden_options(golden, test.layout);
    options.async_scheduling = test.async;
    Comparison got = compare(golden, {.options = options});
    EXPECT_EQ(got.different_tokens, 0);
    EXPECT_LE(got.logits_error, kToleranceF32);
    worst = std::max(worst, got.logits_error);
  }
  std::printf("worst f32 error of a logit: %.2e\n", worst);
}

TEST_P(Golden, EveryLayoutInBf16) {
  GoldenCase golden = load_golden(GetParam());
  ASSERT_GE(golden.gap, 10 * kToleranceBf16) << "greedy tokens would hang on rounding";
  double worst = 0.0;
  for (const LayoutCase& test : layouts(golden)) {
    if (!test.async) continue;
    SCOPED_TRACE(to_string(test.layout));
    Comparison got = compare(golden, {.options = golden_options(golden, test.layout, DType::kBF16)});
    EXPECT_EQ(got.different_tokens, 0);
    EXPECT_LE(got.logits_error, kToleranceBf16);
    worst = std::max(worst, got.logits_error);
  }
  std::printf("worst bf16 error of a logit: %.3f\n", worst);
}

// Codes have 4 significant bits. What one layout of ranks says, every other says too: a row's scale is that
// of the whole row.
TEST_P(Golden, LayoutsAgreeOnF8Weights) {
  GoldenCase golden = load_golden(GetParam());
  EngineOptions options = golden_options(golden, {});
  options.quantization = WeightScheme::kF8E4M3;
  Comparison alone = compare(golden, {.options = options});
  EXPECT_GE(alone.logits_error, 10 * kToleranceF32) << "nothing was quantized";
  EXPECT_LE(alone.logits_error, kToleranceF8);
  EXPECT_EQ(alone.different_tokens, 0);
  std::printf(
      "f8 weights: error of a logit %.3f at worst, %.4f on average\n", alone.logits_error, alone.mean_error);
  golden.logits = alone.logits;
  golden.tokens = alone.tokens;
  for (const parallel::Layout& layout :
       {parallel::Layout{.tp = 2}, {.tp = 3}, {.tp = 2, .pp = 2, .sequence_parallel = true}}) {
    SCOPED_TRACE(to_string(layout));
    options.layout = layout;
    Comparison got = compare(golden, {.options = options});
    EXPECT_EQ(got.different_tokens, 0);
    EXPECT_LE(got.logits_error, kToleranceF32);
  }
}

// Keys and values with 4 significant bits.
TEST_P(Golden, EveryLayoutOverAnF8Cache) {
  GoldenCase golden = load_golden(GetParam());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const parallel::Layout& layout :
         {parallel::Layout{}, {.tp = 2}, {.tp = 3}, {.tp = 2, .pp = 2, .sequence_parallel = true}}) {
      SCOPED_TRACE(to_string(layout) + " " + std::string(to_string(dtype)));
      EngineOptions options = golden_options(golden, layout, dtype);
      options.kv_dtype = DType::kF8E4M3;
      Comparison got = compare(golden, {.options = options});
      EXPECT_EQ(got.different_tokens, 0);
      EXPECT_LE(got.logits_error, kToleranceF8);
      if (layout.world_size() > 1) continue;
      EXPECT_GE(got.logits_error, 10 * kToleranceF32) << "nothing was rounded";
      std::printf("f8 cache, activations in %s: error of a logit %.3f at worst, %.4f on average\n",
                  std::string(to_string(dtype)).c_str(),
                  got.logits_error,
                  got.mean_error);
    }
  }
}

// Three bugs that a port of a model is prone to, each put in on purpose.

void attention_without_scale(kernels::OpState& state,
                             device::Stream& stream,
                             const kernels::AttentionParams& params) {
  kernels::AttentionParams wrong = params;
  wrong.scale = 1.0f;
  kernels::cpu_ops().attention(state, stream, wrong);
}

void attention_with_swapped_heads(kernels::OpState& state,
                                  device::Stream& stream,
                                  const kernels::AttentionParams& params) {
  kernels::cpu_ops().attention(state, stream, params);
  int64_t head_bytes = params.out.dim(1) / params.num_heads * dtype_bytes(params.out.dtype);
  device::as_cpu(stream).enqueue([out = params.out, head_bytes] {
    for (int64_t token = 0; token < out.dim(0); ++token) {
      std::byte* row = static_cast<std::byte*>(out.rows(token, 1).data);
      std::swap_ranges(row, row + head_bytes, row + head_bytes);
    }
  });
}

void expect_noticed(const GoldenCase& golden, const kernels::OpTable& ops) {
  Comparison f32 = compare(golden, {.options = golden_options(golden, {}), .ops = &ops});
  EXPECT_GE(f32.logits_error, 10 * kToleranceF32);
  Comparison bf16 = compare(golden, {.options = golden_options(golden, {}, DType::kBF16), .ops = &ops});
  EXPECT_GE(bf16.logits_error, 10 * kToleranceBf16);
}

TEST_P(Golden, MissingAttentionScaleIsNoticed) {
  kernels::OpTable ops = kernels::cpu_ops();
  ops.attention = attention_without_scale;
  expect_noticed(load_golden(GetParam()), ops);
}

TEST_P(Golden, SwappedHeadsAreNoticed) {
  kernels::OpTable ops = kernels::cpu_ops();
  ops.attention = attention_with_swapped_heads;
  expect_noticed(load_golden(GetParam()), ops);
}

TEST_P(Golden, WrongRotaryBaseIsNoticed) {
  GoldenCase golden = load_golden(GetParam());
  auto& config = const_cast<checkpoint::ModelConfig&>(golden.checkpoint->config());
  config.rope.theta *= 10;
  expect_noticed(golden, kernels::cpu_ops());
}

// What runs on how many rows, as the step loop issues it.
class Trace : public kernels::OpObserver {
 public:
  void before(const kernels::OpCall& call, device::Stream&) override { rows_[call.name].insert(call.rows); }
  void after(const kernels::OpCall&, device::Stream&) override {}
  void forget() { rows_.clear(); }
  std::set<int64_t> rows(const std::string& op) const {
    auto found = rows_.find(op);
    return found == rows_.end() ? std::set<int64_t>{}
                                : std::set<int64_t>(found->second.begin(), found->second.end());
  }
  int64_t calls(const std::string& op, int64_t rows) const {
    auto found = rows_.find(op);
    return found == rows_.end() ? 0 : static_cast<int64_t>(found->second.count(rows));
  }

 private:
  std::map<std::string, std::multiset<int64_t>> rows_;
};

// Of one prompt of nine tokens.
Trace trace_of(const GoldenCase& golden, const EngineOptions& options, int32_t generated) {
  Trace trace;
  auto hooks = [&](int rank) { return EngineHooks{.observer = rank == 0 ? &trace : nullptr}; };
  auto replica = Replica::start(*golden.checkpoint, {.engine = options, .hooks = hooks});
  CHECK(replica.ok(), "{}", replica.status().to_string());
  trace.forget();  // what warmed up
  (*replica)->generate({greedy_request(golden.prompts[1], generated)});
  (*replica)->stop();
  return trace;
}
Trace trace_of(const GoldenCase& golden, const parallel::Layout& layout) {
  return trace_of(golden, golden_options(golden, layout), 4);
}

using Rows = std::set<int64_t>;

TEST(SequenceParallel, NormsSeeTheirShareOfTheRowsAndNothingIsAllReduced) {
  GoldenCase golden = load_golden("grouped");
  ASSERT_EQ(golden.prompts[1].size(), 9u);
  Trace trace = trace_of(golden, {.tp = 2, .sequence_parallel = true});
  // ceil(9 / 2), and ceil(1 / 2) in decode steps. Behind the last attention a prompt's one sampled row stands
  // on both ranks, beside a row of padding.
  EXPECT_EQ(trace.rows("add_rms_norm"), (Rows{1, 2, 5}));
  EXPECT_EQ(trace.rows("rms_norm"), (Rows{1, 5}));
  EXPECT_EQ(trace.rows("attention"), (Rows{2, 10}));
  EXPECT_EQ(trace.rows("all_gather"), (Rows{2, 10}));
  EXPECT_EQ(trace.rows("reduce_scatter"), (Rows{2, 10}));
  EXPECT_EQ(trace.rows("all_reduce"), Rows{2});
  EXPECT_EQ(trace.calls("all_reduce", 2), 3);  // the residual stream's, the attention's and the MLP's
}

TEST(SequenceParallel, OffEveryRankNormsAllRows) {
  Trace trace = trace_of(load_golden("grouped"), {.tp = 2});
  EXPECT_EQ(trace.rows("add_rms_norm"), (Rows{1, 2, 9}));
  EXPECT_EQ(trace.rows("all_reduce"), (Rows{1, 2, 9}));
  EXPECT_EQ(trace.rows("reduce_scatter"), Rows{});
  EXPECT_EQ(trace.rows("all_gather"), Rows{});
}

TEST(SequenceParallel, StepsWithoutAKernelForNormsOfSharesAreNot) {
  Trace trace = trace_of(load_golden("grouped"), {.tp = 2, .sequence_parallel_from = 4});
  EXPECT_EQ(trace.rows("add_rms_norm"), (Rows{1, 2, 9}));
  EXPECT_EQ(trace.rows("reduce_scatter"), Rows{});
  EXPECT_EQ(trace.rows("all_gather"), Rows{});
}

TEST(SampledRows, BehindTheLastAttentionAPromptIsOneRow) {
  GoldenCase golden = load_golden("grouped");
  const int64_t layers = golden.checkpoint->config().num_layers;
  Trace trace = trace_of(golden, {});
  EXPECT_EQ(trace.calls("attention", 9), layers);
  EXPECT_EQ(trace.calls("linear_silu_and_mul", 9), layers - 1);
  EXPECT_EQ(trace.calls("linear_silu_and_mul", 1), 1 + 3 * layers);  // and three decode steps
}

TEST(SampledRows, WithoutPruningTheLastLayerHasAllRows) {
  GoldenCase golden = load_golden("grouped");
  const int64_t layers = golden.checkpoint->config().num_layers;
  for (const parallel::Layout& layout : {parallel::Layout{},
                                         {.tp = 2, .sequence_parallel = true},
                                         {.tp = 2, .sequence_parallel_from = 4},
                                         {.pp = 2}}) {
    SCOPED_TRACE(to_string(layout));
    EngineOptions options = golden_options(golden, layout);
    options.prune_last_layer = false;
    Comparison got = compare(golden, {.options = options});
    EXPECT_EQ(got.different_tokens, 0);
    EXPECT_LE(got.logits_error, kToleranceF32);
  }
  EngineOptions options = golden_options(golden, {});
  options.prune_last_layer = false;
  EXPECT_EQ(trace_of(golden, options, 4).calls("linear_silu_and_mul", 9), layers);
}

TEST(SampledRows, AChunkWithoutAPromptsEndLeavesItsKeysAlone) {
  GoldenCase golden = load_golden("grouped");
  const int64_t layers = golden.checkpoint->config().num_layers;
  EngineOptions options = golden_options(golden, {});
  options.max_num_batched_tokens = 8;
  Trace trace = trace_of(golden, options, 1);
  EXPECT_EQ(trace.calls("rope_append", 8), layers);
  EXPECT_EQ(trace.calls("linear_silu_and_mul", 8), layers - 1);
  EXPECT_EQ(trace.calls("linear_silu_and_mul", 1), layers);
}

}  // namespace
}  // namespace llm_dist::engine
