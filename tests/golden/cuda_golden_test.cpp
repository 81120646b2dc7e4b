// The goldens on GPUs: every layout that the visible ones allow, with graphs and without.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <vector>

#include "tests/golden/cuda_replicas.h"
#include "tests/golden/golden_case.h"

namespace llm_dist::engine {
namespace {

constexpr double kToleranceF32 = 1e-4;
constexpr double kToleranceShort = 0.2;  // 16-bit activations
constexpr double kToleranceF8 = 1.2;     // weights of linear layers in 8-bit floats too

class CudaGolden : public CudaReplicas, public testing::WithParamInterface<const char*> {
 protected:
  std::vector<parallel::Layout> layouts(const GoldenCase& golden) const {
    const checkpoint::ModelConfig& model = golden.checkpoint->config();
    std::vector<parallel::Layout> fitting;
    for (parallel::Layout layout : {parallel::Layout{.tp = 1, .pp = 1},
                                    {.tp = 2, .pp = 1},
                                    {.tp = 1, .pp = 2},
                                    {.tp = 2, .pp = 1, .sequence_parallel = true},
                                    {.tp = 2, .pp = 1, .sequence_parallel_from = 4},
                                    {.tp = 3, .pp = 1},
                                    {.tp = 1, .pp = 3},
                                    {.tp = 4, .pp = 1},
                                    {.tp = 4, .pp = 1, .sequence_parallel = true},
                                    {.tp = 1, .pp = 4},
                                    {.tp = 2, .pp = 2},
                                    {.tp = 2, .pp = 2, .sequence_parallel = true},
                                    {.tp = 2, .pp = 2, .sequence_parallel_from = 4},
                                    {.tp = 8, .pp = 1},
                                    {.tp = 8, .pp = 1, .sequence_parallel = true},
                                    {.tp = 4, .pp = 2},
                                    {.tp = 4, .pp = 2, .sequence_parallel = true},
                                    {.tp = 2, .pp = 4},
                                    {.tp = 1, .pp = 8}}) {
      if (layout.tp > model.num_heads || layout.pp > model.num_layers) continue;
      if (layout.world_size() <= most_ranks()) fitting.push_back(layout);
    }
    return fitting;
  }

  // Tokens as the golden says; logits within `tolerance`.
  void compare(const GoldenCase& golden, const EngineOptions& engine, double tolerance) const {
    LogitsRecorder recorder(engine.layout, golden.vocab_size(), make_backend());
    ReplicaOptions options = replica_options(engine);
    options.hooks = [&](int rank) { return recorder.hooks(rank); };
    auto replica = Replica::start(*golden.checkpoint, options);
    ASSERT_TRUE(replica.ok()) << replica.status().to_string();
    std::vector<sched::SequenceRequest> requests;
    for (size_t i = 0; i < golden.prompts.size(); ++i) {
      requests.push_back(greedy_request(golden.prompts[i], static_cast<int32_t>(golden.steps()), i));
    }
    std::vector<Output> outputs = (*replica)->generate(std::move(requests));
    for (const Status& end : (*replica)->stop()) EXPECT_TRUE(end.ok()) << end.to_string();
    double worst = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      EXPECT_EQ(outputs[i].tokens, golden.tokens[i]) << "sequence " << i;
      auto prompt_len = static_cast<int64_t>(golden.prompts[i].size());
      for (int64_t step = 0; step < golden.steps(); ++step) {
        std::vector<float> row = recorder.row(i, prompt_len + step);
        ASSERT_EQ(row.size(), static_cast<size_t>(golden.vocab_size()));
        for (size_t v = 0; v < row.size(); ++v) {
          worst = std::max(worst, std::abs(static_cast<double>(row[v]) - golden.logits_at(i, step)[v]));
        }
      }
    }
    EXPECT_LE(worst, tolerance);
    std::printf("%s %s, %zu graph sizes: worst error of a logit %.2e\n",
                to_string(engine.layout).c_str(),
                std::string(to_string(engine.dtype)).c_str(),
                engine.graph_sizes.size(),
                worst);
  }
};
INSTANTIATE_TEST_SUITE_P(Models,
                         CudaGolden,
                         testing::Values("grouped", "llama3", "multiquery", "wide_heads"),
                         [](const auto& named) { return std::string(named.param); });

TEST_P(CudaGolden, EveryLayoutWithGraphsAndWithout) {
  GoldenCase golden = load_golden(GetParam());
  for (const parallel::Layout& layout : layouts(golden)) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const std::vector<int64_t>& sizes : std::set<std::vector<int64_t>>{{}, graph_sizes()}) {
        SCOPED_TRACE(to_string(layout) + " " + std::string(to_string(dtype)) +
                     (sizes.empty() ? ", eager" : ", graphs"));
        EngineOptions options = golden_options(golden, layout, dtype);
        options.graph_sizes = sizes;
        compare(golden, options, dtype == DType::kF32 ? kToleranceF32 : kToleranceShort);
      }
    }
  }
}

// What flags turn off, of the engine.
TEST_P(CudaGolden, WithoutWhatCanBeTurnedOff) {
  GoldenCase golden = load_golden(GetParam());
  for (const parallel::Layout& layout : layouts(golden)) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(to_string(layout) + " " + std::string(to_string(dtype)));
      EngineOptions options = golden_options(golden, layout, dtype);
      options.linear_kernels = kernels::LinearKernels::kLibrary;
      options.attention_kernels = kernels::AttentionKernels::kPortable;
      options.persistent_kernels = options.row_teams = options.prune_last_layer = options.autotune = false;
      options.graph_sizes = graph_sizes();
      compare(golden, options, dtype == DType::kF32 ? kToleranceF32 : kToleranceShort);
    }
  }
}

TEST_P(CudaGolden, F8Weights) {
  GoldenCase golden = load_golden(GetParam());
  for (const parallel::Layout& layout : layouts(golden)) {
    for (DType dtype : {DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(to_string(layout) + " " + std::string(to_string(dtype)));
      EngineOptions options = golden_options(golden, layout, dtype);
      options.quantization = WeightScheme::kF8E4M3;
      options.graph_sizes = graph_sizes();
      compare(golden, options, kToleranceF8);
    }
  }
}

TEST_P(CudaGolden, F8Cache) {
  GoldenCase golden = load_golden(GetParam());
  for (const parallel::Layout& layout : layouts(golden)) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(to_string(layout) + " " + std::string(to_string(dtype)));
      EngineOptions options = golden_options(golden, layout, dtype);
      options.kv_dtype = DType::kF8E4M3;
      options.graph_sizes = graph_sizes();
      compare(golden, options, kToleranceF8);
    }
  }
}

class OpNames : public kernels::OpObserver {
 public:
  void before(const kernels::OpCall& call, device::Stream&) override { names.insert(call.name); }
  void after(const kernels::OpCall&, device::Stream&) override {}
  std::set<std::string> names;
};

// One sequence, whose steps are the same in both runs.
TEST_P(CudaGolden, NormsThatMakeTheirSumHaveTheLogitsOfTheCallsApart) {
  if (most_ranks() < 2) GTEST_SKIP() << "fewer than two GPUs";
  GoldenCase golden = load_golden(GetParam());
  const auto prompt_len = static_cast<int64_t>(golden.prompts[1].size());
  auto run = [&](const parallel::Layout& layout, const comm::PeerLimits& limits, OpNames& ops) {
    const EngineOptions engine = golden_options(golden, layout, DType::kBF16);
    LogitsRecorder recorder(engine.layout, golden.vocab_size(), make_backend());
    ReplicaOptions options = replica_options(engine, limits);
    options.hooks = [&](int rank) {
      EngineHooks hooks = recorder.hooks(rank);
      if (rank == 0) hooks.observer = &ops;
      return hooks;
    };
    auto replica = Replica::start(*golden.checkpoint, options);
    CHECK(replica.ok(), "{}", replica.status().to_string());
    (*replica)->generate({greedy_request(golden.prompts[1], static_cast<int32_t>(golden.steps()), 0)});
    for (const Status& end : (*replica)->stop()) EXPECT_TRUE(end.ok()) << end.to_string();
    std::vector<std::vector<float>> rows;
    for (int64_t step = 0; step < golden.steps(); ++step) rows.push_back(recorder.row(0, prompt_len + step));
    return rows;
  };
  comm::PeerLimits limits = comm::default_peer_limits(2, {});
  limits.norm_bytes = limits.shared_bytes = 0;
  OpNames apart;
  const auto expected = run({.tp = 2}, limits, apart);
  limits.norm_bytes = 1 << 20;
  OpNames fused;
  EXPECT_EQ(run({.tp = 2}, limits, fused), expected);
  EXPECT_EQ(apart.names.count("all_reduce_add_rms_norm"), 0u);
  const bool fits = golden.checkpoint->config().hidden_size % 8 == 0;
  EXPECT_EQ(fused.names.count("all_reduce_add_rms_norm"), fits ? 1u : 0u);
  EXPECT_EQ(fused.names.count("add_rms_norm"), fits ? 0u : 1u);

  limits.shared_bytes = 1 << 20;
  OpNames shared;
  EXPECT_EQ(run({.tp = 2, .sequence_parallel_from = 4}, limits, shared), expected);
  EXPECT_EQ(shared.names.count("add_rms_norm_of_shares"), fits ? 1u : 0u);
  EXPECT_EQ(shared.names.count("reduce_scatter"), 0u);
  EXPECT_EQ(shared.names.count("all_gather"), 0u);
}

// Sampled sequences too, of many lengths, whose batch grows and shrinks.
TEST_P(CudaGolden, GraphsYieldTheTokensOfEagerSteps) {
  if (graph_sizes().empty()) GTEST_SKIP() << "ranks that share a GPU replay no graphs";
  GoldenCase golden = load_golden(GetParam());
  for (const parallel::Layout& layout : layouts(golden)) {
    SCOPED_TRACE(to_string(layout));
    auto tokens = [&](std::vector<int64_t> sizes) {
      EngineOptions options = golden_options(golden, layout);
      options.graph_sizes = std::move(sizes);
      auto replica = Replica::start(*golden.checkpoint, replica_options(options));
      CHECK(replica.ok(), "{}", replica.status().to_string());
      std::vector<sched::SequenceRequest> requests;
      for (int32_t i = 0; i < 12; ++i) {
        std::vector<int32_t> prompt;
        for (int32_t t = 0; t < 2 + 3 * i; ++t) prompt.push_back((7 * t + 11 * i) % 120);
        requests.push_back(greedy_request(std::move(prompt), 5 + 2 * i, static_cast<uint64_t>(i)));
        if (i % 3 == 0) requests.back().sampling.temperature = 1.5f;
      }
      std::vector<std::vector<int32_t>> got;
      for (const Output& output : (*replica)->generate(std::move(requests))) got.push_back(output.tokens);
      return got;
    };
    EXPECT_EQ(tokens(graph_sizes()), tokens({}));
  }
}

}  // namespace
}  // namespace llm_dist::engine
