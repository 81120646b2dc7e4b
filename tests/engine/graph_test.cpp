// Decode steps as graphs: the same tokens, fewer things issued, attention planned in front of each.
#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "src/device/cpu/cpu_backend.h"
#include "src/device/cpu/cpu_stream.h"
#include "src/engine/graph_cache.h"
#include "tests/engine/requests.h"

namespace llm_dist::engine {
namespace {

using parallel::Layout;

// Counts what is issued op by op, on rank 0.
class OpCounter : public kernels::OpObserver {
 public:
  void before(const kernels::OpCall& call, device::Stream&) override { ++counts_[call.name]; }
  void after(const kernels::OpCall&, device::Stream&) override {}
  int operator[](const std::string& op) const {
    auto found = counts_.find(op);
    return found == counts_.end() ? 0 : found->second;
  }

 private:
  std::map<std::string, int> counts_;
};

TEST(Graphs, GraphsYieldTheTokensOfEagerSteps) {
  GoldenCase golden = load_golden("grouped");
  std::vector<sched::SequenceRequest> requests = random_requests(golden, 12);
  for (size_t i = 0; i < requests.size(); i += 3) requests[i].sampling.temperature = 1.5f;
  for (const Layout& layout : {Layout{},
                               Layout{.tp = 2},
                               Layout{.tp = 1, .pp = 2},
                               Layout{.tp = 2, .pp = 2, .sequence_parallel = true}}) {
    SCOPED_TRACE(to_string(layout));
    EngineOptions options = golden_options(layout);
    std::vector<std::vector<int32_t>> expected = generate(golden, options, requests);
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{1, 2, 4, 8}, {3}}) {
      options.graph_sizes = sizes;
      EXPECT_EQ(generate(golden, options, requests), expected) << sizes.size() << " graph sizes";
    }
  }
}

TEST(Graphs, DecodeStepsAreReplayed) {
  GoldenCase golden = load_golden("grouped");
  auto count = [&](std::vector<int64_t> sizes) {
    OpCounter counter;
    EngineOptions options = golden_options({});
    options.graph_sizes = std::move(sizes);
    auto hooks = [&](int) { return EngineHooks{.observer = &counter}; };
    start(golden, {.engine = options, .hooks = hooks})->generate({greedy_request({1, 2, 3}, 20)});
    return std::pair{counter["attention"], counter["argmax_shard"]};
  };
  int layers = static_cast<int>(golden.checkpoint->config().num_layers);
  // A prompt and 19 tokens behind it, and perhaps one step of look-ahead.
  auto [eager_layers, eager_samples] = count({});
  EXPECT_GE(eager_layers, 20 * layers);
  EXPECT_GE(eager_samples, 20);
  // The prompt that warms up; two graphs, each issued once eagerly and once to capture; the request's prompt.
  auto [layers_issued, samples_issued] = count({1, 4});
  EXPECT_EQ(layers_issued, 6 * layers);
  EXPECT_EQ(samples_issued, 6);
}

TEST(Graphs, StepsThatAreIssuedAnewCanHaveTheirKernelsChosenToo) {
  GoldenCase golden = load_golden("grouped");
  auto layers_at_start = [&](std::vector<int64_t> graph_sizes, std::vector<int64_t> tuned_sizes) {
    OpCounter counter;
    EngineOptions options = golden_options({});
    options.graph_sizes = std::move(graph_sizes);
    options.tuned_sizes = std::move(tuned_sizes);
    auto hooks = [&](int) { return EngineHooks{.observer = &counter}; };
    auto replica = start(golden, {.engine = options, .hooks = hooks});
    return counter["attention"] / static_cast<int>(golden.checkpoint->config().num_layers);
  };
  EXPECT_EQ(layers_at_start({}, {}), 1);       // the prompt that warms up
  EXPECT_EQ(layers_at_start({}, {1, 4}), 3);   // and a step of each size
  EXPECT_EQ(layers_at_start({2}, {1, 4}), 5);  // and a graph, issued twice
}

struct PlanLog {
  std::atomic<int> plans{0};
  std::atomic<int> wrong_bounds{0};
  std::atomic<int64_t> max_context{0};
};
PlanLog plan_log;

void logged_plan(kernels::OpState&, device::Stream&, const kernels::AttentionPlanParams& params) {
  ++plan_log.plans;
  plan_log.max_context = params.max_context_len;
  bool right = params.query_starts.dim(0) == params.num_sequences + 1 &&
               params.query_starts_host[params.num_sequences] <= params.num_tokens;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    int32_t count = params.query_starts_host[s + 1] - params.query_starts_host[s];
    right = right && count >= 0 && count <= params.max_query_len && params.context_lens_host[s] >= count &&
            params.context_lens_host[s] <= params.max_context_len;
  }
  if (!right) ++plan_log.wrong_bounds;
}

// What the device finds is within what the host said.
void checked_attention(kernels::OpState& state,
                       device::Stream& stream,
                       const kernels::AttentionParams& params) {
  device::as_cpu(stream).enqueue([lens = params.context_lens] {
    for (int64_t s = 0; s < lens.dim(0); ++s) {
      if (lens.as<int32_t>()[s] > plan_log.max_context) ++plan_log.wrong_bounds;
    }
  });
  kernels::cpu_ops().attention(state, stream, params);
}

TEST(Graphs, AttentionIsPlannedOnceAStepFromBoundsThatHold) {
  GoldenCase golden = load_golden("grouped");
  kernels::OpTable ops = kernels::cpu_ops();
  ops.attention_plan = logged_plan;
  ops.attention = checked_attention;
  for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{}, {2, 8}}) {
    EngineOptions options = golden_options({});
    options.async_scheduling = false;  // so that a step's attention has run before the next one is planned
    options.graph_sizes = sizes;
    plan_log.plans = plan_log.wrong_bounds = 0;
    auto replica = start(golden, {.engine = options, .ops = &ops});
    replica->generate(random_requests(golden, 12));
    replica->stop();
    const uint64_t warming_up = 1 + sizes.size();
    EXPECT_EQ(static_cast<uint64_t>(plan_log.plans), replica->engine().stats().steps + warming_up);
    EXPECT_EQ(plan_log.wrong_bounds, 0);
  }
}

TEST(GraphCache, TakesTheSmallestSizeThatHoldsTheBatch) {
  auto backend = device::make_cpu_backend({});
  GraphCache cache(*backend, {1, 4, 8});
  EXPECT_EQ(cache.bucket_for(0), 0);
  EXPECT_EQ(cache.bucket_for(1), 1);
  EXPECT_EQ(cache.bucket_for(2), 4);
  EXPECT_EQ(cache.bucket_for(8), 8);
  EXPECT_EQ(cache.bucket_for(9), 0);
  EXPECT_EQ(default_graph_sizes(20), (std::vector<int64_t>{1, 2, 4, 8, 16, 20}));
  EXPECT_EQ(default_graph_sizes(2), (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace llm_dist::engine
