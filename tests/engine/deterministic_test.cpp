// --deterministic: the bits of a sequence's logits, alone and beside others.
#include <gtest/gtest.h>

#include "tests/engine/requests.h"
#include "tests/kernels/instructions.h"

namespace llm_dist::engine {
namespace {

using parallel::Layout;

struct Case {
  const char* golden;
  DType dtype;
  Layout layout;
  bool avx2_only = false;
};

class Deterministic : public testing::TestWithParam<Case> {
 protected:
  using Requests = std::vector<sched::SequenceRequest>;

  static EngineOptions options() {
    EngineOptions options = golden_options(GetParam().layout, GetParam().dtype);
    options.deterministic = true;
    return options;
  }

  // The logits of each request at each of its positions.
  std::vector<std::vector<float>> logits(const EngineOptions& options,
                                         const Requests& requests,
                                         bool one_by_one) {
    LogitsRecorder recorder(options.layout, golden_.vocab_size());
    auto replica = start(golden_, {.engine = options, .ops = &instructions_.ops(), .hooks = [&](int rank) {
                                     return recorder.hooks(rank);
                                   }});
    std::vector<Output> outputs;
    if (one_by_one) {
      for (const sched::SequenceRequest& request : requests)
        outputs.push_back(replica->generate({request})[0]);
    } else {
      outputs = replica->generate(requests);
    }
    num_preemptions_ += replica->engine().stats().scheduler.num_preemptions;
    replica.reset();  // idle
    std::vector<std::vector<float>> rows;
    for (size_t i = 0; i < requests.size(); ++i) {
      auto first = static_cast<int64_t>(requests[i].prompt.size());
      for (size_t t = 0; t < outputs[i].tokens.size(); ++t) {
        rows.push_back(recorder.row(requests[i].sampling.seed, first + static_cast<int64_t>(t)));
        EXPECT_FALSE(rows.back().empty());
      }
    }
    return rows;
  }

  kernels::Instructions instructions_{GetParam().avx2_only};
  GoldenCase golden_ = load_golden(GetParam().golden);
  uint64_t num_preemptions_ = 0;
};

TEST_P(Deterministic, TheBitsDoNotDependOnTheBatch) {
  const Requests requests = random_requests(golden_, 16);
  const auto alone = logits(options(), requests, true);
  ASSERT_GT(alone.size(), 200u);
  EXPECT_TRUE(alone == logits(options(), requests, false)) << "all at once";
  EngineOptions whole = options();
  whole.max_num_batched_tokens = 256;
  whole.enable_chunked_prefill = false;
  whole.async_scheduling = false;
  EXPECT_TRUE(alone == logits(whole, requests, false)) << "whole prompts, plain loop";
  EngineOptions crowded = options();
  crowded.num_blocks = crowded.max_blocks_per_sequence() + 4;
  EXPECT_EQ(num_preemptions_, 0u);
  EXPECT_TRUE(alone == logits(crowded, requests, false)) << "with preemptions";
  EXPECT_GT(num_preemptions_, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    Deterministic,
    testing::Values(Case{"grouped", DType::kF32, {}},
                    Case{"grouped", DType::kF32, {}, true},
                    Case{"llama3", DType::kBF16, {}},
                    Case{"llama3", DType::kBF16, {}, true},
                    Case{"multiquery", DType::kF32, {.tp = 3}},
                    Case{"grouped", DType::kF32, {.tp = 2, .pp = 2, .sequence_parallel = true}}),
    [](const auto& instance) {
      const Case& one = instance.param;
      return std::string(one.golden) + std::string(to_string(one.dtype)) + "Tp" +
             std::to_string(one.layout.tp) + "Pp" + std::to_string(one.layout.pp) +
             (one.avx2_only ? "Avx2" : "");
    });

}  // namespace
}  // namespace llm_dist::engine
