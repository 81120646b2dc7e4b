// A model whose products hand rows among two GPUs (src/device/handed_rows.h), beside the same one without
// sequence parallelism, whose products find all rows. Weights are made up: nothing is said of what comes out
// but that it is the same. Likewise of products of prompts by weights in 8-bit floats, beside the library's.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "tests/checkpoint/tiny_model.h"
#include "tests/golden/cuda_replicas.h"
#include "tests/golden/golden_case.h"

namespace llm_dist::engine {
namespace {

constexpr int kTp = 2;
constexpr int64_t kStepTokens = kTp * kernels::kHandedRows;
constexpr int64_t kVocab = 512;
constexpr int64_t kHidden = 512;
constexpr int32_t kOutputs = 4;

// Of every op table's, since those hold plain functions.
std::atomic<int> num_handed{0};
std::atomic<int> num_handed_gated{0};
// Products of rows that the one in front left in codes, and those whose results go to several places.
std::atomic<int> num_of_codes{0};
std::atomic<int> num_of_codes_scattered{0};
// Products of rows that a norm left in codes, and those that hand such.
std::atomic<int> num_of_norms{0};
std::atomic<int> num_of_norms_handed{0};

// The token that a greedy sequence goes on with. Made-up weights have near ties, and what is behind one that
// went the other way has other logits.
ptrdiff_t best(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

// Of a norm's codes: one for each row, not for groups of its columns.
bool are_of_norm(const Tensor& scales) { return scales && scales.dim(0) == 1; }

class CudaHandedRows : public CudaReplicas {
 protected:
  void SetUp() override {
    CudaReplicas::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (comm::ranks_share_gpu()) GTEST_SKIP() << "products that hand rows wait on all processors";
    if (module_->visible_devices() < kTp) GTEST_SKIP() << "fewer than two GPUs";
    counting_ = *module_->ops;
    static const kernels::OpTable* ops = nullptr;
    ops = module_->ops;
    counting_.linear_of_handed = [](kernels::OpState& state,
                                    device::Stream& stream,
                                    const kernels::LinearParams& params,
                                    const device::HandedRows& rows) {
      ++num_handed;
      if (are_of_norm(params.x_scales)) ++num_of_norms_handed;
      ops->linear_of_handed(state, stream, params, rows);
    };
    counting_.linear_silu_and_mul_of_handed = [](kernels::OpState& state,
                                                 device::Stream& stream,
                                                 const kernels::LinearSiluAndMulParams& params,
                                                 const device::HandedRows& rows) {
      ++num_handed_gated;
      if (are_of_norm(params.x_scales)) ++num_of_norms_handed;
      ops->linear_silu_and_mul_of_handed(state, stream, params, rows);
    };
    counting_.linear =
        [](kernels::OpState& state, device::Stream& stream, const kernels::LinearParams& params) {
          if (params.x_scales) ++(are_of_norm(params.x_scales) ? num_of_norms : num_of_codes);
          ops->linear(state, stream, params);
        };
    counting_.linear_silu_and_mul =
        [](kernels::OpState& state, device::Stream& stream, const kernels::LinearSiluAndMulParams& params) {
          if (are_of_norm(params.x_scales)) ++num_of_norms;
          ops->linear_silu_and_mul(state, stream, params);
        };
    counting_.linear_shares =
        [](kernels::OpState& state, device::Stream& stream, const kernels::LinearSharesParams& params) {
          if (params.x_scales) ++(params.whole() ? num_of_codes : num_of_codes_scattered);
          ops->linear_shares(state, stream, params);
        };
  }

  // Whose matrices' shards are whole tiles of the kernel that hands.
  static std::unique_ptr<checkpoint::Checkpoint> model(bool attention_bias) {
    checkpoint::TempDir dir;
    checkpoint::write_file(
        dir / "config.json",
        format(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {},
                   "hidden_size": {}, "num_hidden_layers": 3, "num_attention_heads": 8,
                   "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 1024,
                   "attention_bias": {}, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
                   "hidden_act": "silu"})",
               kVocab,
               kHidden,
               attention_bias));
    auto opened =
        checkpoint::Checkpoint::open(dir.path(),
                                     checkpoint::LoadFormat::kDummy,
                                     {.load_tokenizer = false, .dummy_scheme = WeightScheme::kBF16});
    CHECK(opened.ok(), "{}", opened.status().to_string());
    return std::move(opened).value();
  }

  // Logits of all that is sampled, of sequences whose prompts are some steps each.
  std::vector<std::vector<float>> logits(
      const checkpoint::Checkpoint& model,
      const parallel::Layout& layout,
      std::optional<WeightScheme> quantization = {},
      kernels::LinearKernels linear_kernels = kernels::LinearKernels::kFastest) {
    const EngineOptions engine{.layout = layout,
                               .dtype = DType::kBF16,
                               .kv_dtype = DType::kBF16,
                               .quantization = quantization,
                               .max_model_len = 4096,
                               .block_size = 16,
                               .max_num_seqs = 4,
                               .max_num_batched_tokens = kStepTokens,
                               .num_blocks = 1024,
                               .linear_kernels = linear_kernels,
                               .step_deadline_seconds = 60};
    LogitsRecorder recorder(layout, kVocab, make_backend());
    // However few rows, their terms go to where they are summed.
    comm::PeerLimits limits = comm::default_peer_limits(kTp, {.shared_bytes = kStepTokens * kHidden * 2});
    if (quantization) limits.handed_bytes = 1;
    ReplicaOptions options = replica_options(engine, limits);
    options.ops = &counting_;
    options.hooks = [&](int rank) { return recorder.hooks(rank); };
    auto replica = Replica::start(model, options);
    CHECK(replica.ok(), "{}", replica.status().to_string());
    // One after the other, so that steps are the same in every layout, and by kernels of ours alone.
    std::vector<std::vector<float>> rows;
    for (uint64_t sequence = 0; sequence < 3; ++sequence) {
      std::vector<int32_t> prompt(static_cast<size_t>(kStepTokens) * (1 + sequence));
      for (size_t i = 0; i < prompt.size(); ++i)
        prompt[i] = static_cast<int32_t>((i * (7 + sequence) + i / 5) % kVocab);
      const auto length = static_cast<int64_t>(prompt.size());
      (*replica)->generate({greedy_request(std::move(prompt), kOutputs, sequence)});
      for (int64_t step = 0; step < kOutputs; ++step) rows.push_back(recorder.row(sequence, length + step));
    }
    for (const Status& end : (*replica)->stop()) EXPECT_TRUE(end.ok()) << end.to_string();
    return rows;
  }

  kernels::OpTable counting_{};
};

TEST_F(CudaHandedRows, HaveTheLogitsOfRowsThatAreThere) {
  num_handed = num_handed_gated = 0;
  auto model = CudaHandedRows::model(false);
  const auto expected = logits(*model, {.tp = kTp});
  EXPECT_EQ(num_handed, 0);
  EXPECT_EQ(num_handed_gated, 0);
  EXPECT_EQ(logits(*model, {.tp = kTp, .sequence_parallel_from = 256}), expected);
  // Of the first layer the rows of queries, keys and values are gathered otherwise; of the last one gate and
  // up read sampled rows alone.
  constexpr int kSteps = 1 + 2 + 3;
  EXPECT_GE(num_handed, kTp * 2 * kSteps);
  EXPECT_GE(num_handed_gated, kTp * 2 * kSteps);
}

// The library's kernels for products with a bias are found by timing, so that bits may differ.
TEST_F(CudaHandedRows, AreHandedByTheMatricesThatCan) {
  constexpr float kTolerance = 0.05f;
  num_handed = num_handed_gated = 0;
  auto model = CudaHandedRows::model(true);
  const auto expected = logits(*model, {.tp = kTp});
  const auto got = logits(*model, {.tp = kTp, .sequence_parallel_from = 256});
  ASSERT_EQ(got.size(), expected.size());
  for (size_t row = 0; row < got.size(); ++row) {
    ASSERT_EQ(got[row].size(), static_cast<size_t>(kVocab));
    for (size_t i = 0; i < got[row].size(); ++i) ASSERT_NEAR(got[row][i], expected[row][i], kTolerance);
  }
  EXPECT_EQ(num_handed, 0);
  EXPECT_GT(num_handed_gated, 0);
}

// Rows between gate-up and down are rounded otherwise than by the library, with a scale for each group, and
// scattered among ranks by the product itself. Those behind a norm are rounded as the library rounds them, by
// the norm, and handed among ranks: nothing comes out otherwise than where all rows are there.
TEST_F(CudaHandedRows, PromptsByF8WeightsAreTheLibrarys) {
  constexpr double kTolerance = 0.1;  // of the logits, root mean square
  auto model = CudaHandedRows::model(false);
  const auto expected = logits(*model, {.tp = 1}, WeightScheme::kF8E4M3, kernels::LinearKernels::kLibrary);
  EXPECT_EQ(num_of_codes, 0);
  EXPECT_EQ(num_of_norms, 0);
  constexpr int kSteps = 1 + 2 + 3;
  std::vector<std::vector<float>> of_whole_rows;
  for (const parallel::Layout& layout : {parallel::Layout{.tp = 1},
                                         parallel::Layout{.tp = kTp},
                                         parallel::Layout{.tp = kTp, .sequence_parallel_from = 256}}) {
    SCOPED_TRACE(format("tp {}, sequence parallel from {}", layout.tp, layout.sequence_parallel_from));
    num_of_codes = num_of_codes_scattered = num_of_norms = num_of_norms_handed = 0;
    const auto got = logits(*model, layout, WeightScheme::kF8E4M3);
    const bool scatters = layout.sequence_parallel_from == 256;
    EXPECT_GE(scatters ? num_of_codes_scattered : num_of_codes, layout.tp * 2 * kSteps);
    EXPECT_EQ(scatters ? num_of_codes : num_of_codes_scattered, 0);
    // Of two layers the rows of queries, keys and values, of two the gate's and up's.
    EXPECT_GE(scatters ? num_of_norms_handed : num_of_norms, layout.tp * 4 * kSteps);
    if (!scatters) {
      EXPECT_EQ(num_of_norms_handed, 0);
    }
    ASSERT_EQ(got.size(), expected.size());
    double off = 0;
    double all = 0;
    bool same_tokens = true;
    size_t compared = 0;
    for (size_t row = 0; row < got.size(); ++row) {
      same_tokens = row % kOutputs == 0 || (same_tokens && best(got[row - 1]) == best(expected[row - 1]));
      if (!same_tokens) continue;
      ++compared;
      for (size_t i = 0; i < got[row].size(); ++i) {
        off += std::pow(double{got[row][i]} - double{expected[row][i]}, 2);
        all += std::pow(double{expected[row][i]}, 2);
      }
    }
    EXPECT_GE(2 * compared, got.size());
    EXPECT_LE(std::sqrt(off / all), kTolerance);
    EXPECT_GT(off, 0);
    if (scatters) {
      EXPECT_EQ(got, of_whole_rows);
    }
    of_whole_rows = got;
  }
}

}  // namespace
}  // namespace llm_dist::engine
