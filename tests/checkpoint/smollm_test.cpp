// The real SmolLM2-135M GGUF, where it was fetched.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

std::string smollm_path() {
  const char* set = std::getenv("LLM_DIST_SMOLLM_GGUF");
  return set != nullptr ? set : LLM_DIST_SOURCE_DIR "/.models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

#define SKIP_WITHOUT_SMOLLM()                  \
  if (!std::filesystem::exists(smollm_path())) \
  GTEST_SKIP() << "no " << smollm_path()       \
               << " (scripts/quickstart.sh fetches it, LLM_DIST_SMOLLM_GGUF names another)"

// A rank's share under tensor parallelism, as the loader will ask for it: q, k, v, gate, up by rows, o and
// down by columns, the embedding by rows, norms whole. SmolLM2's 3 KV heads split 2 + 1.
std::vector<SliceRequest> share_of(const Checkpoint& checkpoint,
                                   int rank,
                                   int tp,
                                   std::vector<std::vector<std::byte>>& memory) {
  std::vector<SliceRequest> requests;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    SliceRequest request = whole(tensor, nullptr);
    auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
    auto cut = [&](int64_t units, int64_t size, int64_t& begin, int64_t& count) {
      int64_t first = (units * rank + tp - 1) / tp, last = (units * (rank + 1) + tp - 1) / tp;
      begin = first * size;
      count = (last - first) * size;
    };
    if (has("q_proj")) cut(3, 192, request.row_begin, request.row_count);
    if (has("k_proj") || has("v_proj")) cut(3, 64, request.row_begin, request.row_count);
    if (has("o_proj")) cut(3, 192, request.col_begin, request.col_count);
    if (has("gate_proj") || has("up_proj")) cut(48, 32, request.row_begin, request.row_count);
    if (has("down_proj")) cut(48, 32, request.col_begin, request.col_count);
    if (has("embed_tokens")) cut(49152, 1, request.row_begin, request.row_count);
    memory.emplace_back(static_cast<size_t>(request.row_count * row_bytes(tensor.scheme, request.col_count)));
    request.destination = memory.back().data();
    requests.push_back(request);
  }
  return requests;
}

TEST(SmolLm, ConfigurationAndTokenizer) {
  SKIP_WITHOUT_SMOLLM();
  auto checkpoint = Checkpoint::open(smollm_path());
  ASSERT_OK(checkpoint);
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.hidden_size, 576);
  EXPECT_EQ(config.num_layers, 30);
  EXPECT_EQ(config.num_heads, 9);
  EXPECT_EQ(config.num_kv_heads, 3);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocab_size, 49152);
  EXPECT_EQ(config.rope.theta, 100000.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_ids, std::vector<int32_t>{2});
  EXPECT_EQ((*checkpoint)->tensors().size(), 272u);
  const TokenizerSpec& tokenizer = (*checkpoint)->tokenizer();
  EXPECT_EQ(tokenizer.tokens.size(), 49152u);
  EXPECT_EQ(tokenizer.merges.size(), 48900u);
  EXPECT_EQ(tokenizer.eos_token, "<|im_end|>");
  EXPECT_NE(tokenizer.chat_template.find("<|im_start|>"), std::string::npos);
}

TEST(SmolLm, SharesAreReadOnce) {
  SKIP_WITHOUT_SMOLLM();
  CheckpointOptions options;
  options.load_tokenizer = false;
  auto checkpoint = Checkpoint::open(smollm_path(), LoadFormat::kAuto, options);
  ASSERT_OK(checkpoint);
  for (int tp : {1, 2, 3}) {
    for (int rank = 0; rank < tp; ++rank) {
      std::vector<std::vector<std::byte>> memory;
      auto requests = share_of(**checkpoint, rank, tp, memory);
      auto stats = (*checkpoint)->read(requests, {.threads = 2, .progress = {}, .stop = {}});
      ASSERT_OK(stats);
      EXPECT_LE(static_cast<double>(stats->bytes_read), 1.02 * static_cast<double>(stats->slice_bytes));
      std::printf("tp %d rank %d: %.1f MB in %.1f ms, %.2f GB/s, %ld requests, %.4f × its bytes\n",
                  tp,
                  rank,
                  static_cast<double>(stats->slice_bytes) / 1e6,
                  stats->seconds * 1e3,
                  static_cast<double>(stats->slice_bytes) / stats->seconds / 1e9,
                  static_cast<long>(stats->requests),
                  static_cast<double>(stats->bytes_read) / static_cast<double>(stats->slice_bytes));
    }
  }
}

// Trained weights: q rows in the wrong order would still look alike, so this checks magnitudes only.
TEST(SmolLm, WeightsAreOfAPlausibleSize) {
  SKIP_WITHOUT_SMOLLM();
  auto checkpoint = Checkpoint::open(smollm_path());
  ASSERT_OK(checkpoint);
  for (const char* name : {"model.embed_tokens.weight",
                           "model.layers.0.self_attn.q_proj.weight",
                           "model.layers.29.mlp.down_proj.weight"}) {
    double squares = 0;
    auto values = read_floats(**checkpoint, name);
    for (float value : values) squares += static_cast<double>(value) * value;
    double deviation = std::sqrt(squares / static_cast<double>(values.size()));
    EXPECT_GT(deviation, 0.01) << name;
    EXPECT_LT(deviation, 1.0) << name;
  }
}

}  // namespace
}  // namespace llm_dist::checkpoint
