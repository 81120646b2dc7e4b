#include "src/model/layout.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace llm_dist::model {
namespace {

using parallel::Layout;

struct Shape {
  int64_t hidden_size = 64;
  int64_t num_layers = 6;
  int64_t num_heads = 8;
  int64_t num_kv_heads = 2;
  int64_t intermediate_size = 128;
};

// A model of this shape, without a byte of weights.
std::unique_ptr<checkpoint::Checkpoint> model_of(const Shape& shape,
                                                 WeightScheme scheme = WeightScheme::kBF16) {
  char pattern[] = "/tmp/llm-dist-layout-XXXXXX";
  std::string folder = ::mkdtemp(pattern);
  std::ofstream(folder + "/config.json")
      << R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100)"
      << ", \"hidden_size\": " << shape.hidden_size << ", \"num_hidden_layers\": " << shape.num_layers
      << ", \"num_attention_heads\": " << shape.num_heads
      << ", \"num_key_value_heads\": " << shape.num_kv_heads
      << ", \"intermediate_size\": " << shape.intermediate_size
      << R"(, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu"})";
  auto opened = checkpoint::Checkpoint::open(
      folder, checkpoint::LoadFormat::kDummy, {.load_tokenizer = false, .dummy_scheme = scheme});
  CHECK(opened.ok(), "{}", opened.status().to_string());
  std::filesystem::remove_all(folder);
  return std::move(opened).value();
}

TEST(CheckLayout, SaysWhyAndWhatFits) {
  auto model = model_of({});
  EXPECT_TRUE(check_layout(*model, {.tp = 8, .pp = 6}).ok());
  Status heads = check_layout(*model, {.tp = 9, .pp = 1});
  EXPECT_EQ(heads.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(heads.message().find("8 heads"), std::string::npos) << heads.message();
  EXPECT_NE(heads.message().find("3x3"), std::string::npos) << heads.message();
  Status layers = check_layout(*model, {.tp = 1, .pp = 7});
  EXPECT_NE(layers.message().find("6 layers"), std::string::npos) << layers.message();
  EXPECT_NE(layers.message().find("7x1"), std::string::npos) << layers.message();
  EXPECT_FALSE(check_layout(*model, {.tp = 0, .pp = 1}).ok());
}

TEST(CheckLayout, QuantizedBlocksAreNotCut) {
  // Heads of 8 values: a block of 32 holds four heads, so two ranks of four heads fit and four of two do not.
  auto model = model_of({}, WeightScheme::kQ4_1);
  EXPECT_EQ(intermediate_granule(*model), 32);
  EXPECT_TRUE(check_layout(*model, {.tp = 2, .pp = 1}).ok());
  Status cut = check_layout(*model, {.tp = 4, .pp = 1});
  EXPECT_EQ(cut.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(cut.message().find("block of 32"), std::string::npos) << cut.message();
  EXPECT_NE(cut.message().find("2x2"), std::string::npos) << cut.message();
}

TEST(ChooseLayout, OneNodeSharesEveryLayer) {
  auto choice = choose_layout(*model_of({}), 4, 4, 0, 0);
  ASSERT_TRUE(choice.ok()) << choice.status().to_string();
  EXPECT_EQ(choice->layout, (Layout{.tp = 4, .pp = 1}));
  EXPECT_FALSE(choice->reason.empty());
}

TEST(ChooseLayout, TensorGroupsStayInsideANode) {
  auto choice = choose_layout(*model_of({}), 8, 4, 0, 0);
  ASSERT_TRUE(choice.ok()) << choice.status().to_string();
  EXPECT_EQ(choice->layout, (Layout{.tp = 4, .pp = 2}));
}

TEST(ChooseLayout, PrefersAnEvenShareOverAWideGroup) {
  // 9 heads on 3 KV heads: 4 ranks get 2, 1, 3, 3 heads, a third more than the mean; 8 ranks would get 2 at
  // most against a mean of 9/8.
  auto choice = choose_layout(*model_of({.hidden_size = 72, .num_heads = 9, .num_kv_heads = 3}), 8, 8, 0, 0);
  ASSERT_TRUE(choice.ok()) << choice.status().to_string();
  EXPECT_EQ(choice->layout, (Layout{.tp = 4, .pp = 2}));
}

TEST(ChooseLayout, AskedDegreesAreKeptOrRefused) {
  auto model = model_of({});
  EXPECT_EQ(choose_layout(*model, 6, 6, 2, 0).value().layout, (Layout{.tp = 2, .pp = 3}));
  EXPECT_EQ(choose_layout(*model, 6, 6, 0, 6).value().layout, (Layout{.tp = 1, .pp = 6}));
  Status wrong = choose_layout(*model, 6, 6, 4, 2).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.message().find("8 ranks"), std::string::npos) << wrong.message();
  EXPECT_FALSE(choose_layout(*model, 7, 7, 0, 7).ok());
}

TEST(ChooseLayout, NothingFits) {
  Status status = choose_layout(*model_of({}), 11, 11, 0, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("another number of ranks"), std::string::npos) << status.message();
}

// A group of three would do for the model, but spans the nodes.
TEST(ChooseLayout, MoreNodesThanLayers) {
  auto model = model_of({.num_layers = 2});
  Status status = choose_layout(*model, 3, 1, 0, 0).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("2 layers and 8 heads"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("fit as: 3x1"), std::string::npos) << status.message();
  EXPECT_TRUE(choose_layout(*model, 3, 1, 3, 0).ok());
}

}  // namespace
}  // namespace llm_dist::model
