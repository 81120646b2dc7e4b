#include "src/checkpoint/dummy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/checkpoint/quantize.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

std::unique_ptr<Checkpoint> open_dummy(std::optional<WeightScheme> scheme = {}) {
  TempDir dir;
  write_file(dir / "config.json", tiny_config_json());
  CheckpointOptions options;
  options.dummy_scheme = scheme;
  auto checkpoint = Checkpoint::open(dir.path(), LoadFormat::kDummy, options);
  CHECK(checkpoint.ok(), "{}", checkpoint.status().to_string());
  return std::move(checkpoint).value();
}

TEST(Dummy, ConfigAloneGivesEveryTensor) {
  auto checkpoint = open_dummy();
  EXPECT_EQ(checkpoint->tensors().size(), 2u * 9 + 2);
  EXPECT_EQ(checkpoint->find("lm_head.weight"), nullptr);
  const TensorInfo* k = checkpoint->find("model.layers.1.self_attn.k_proj.weight");
  ASSERT_NE(k, nullptr);
  EXPECT_EQ(k->rows, 32);
  EXPECT_EQ(k->cols, 64);
  EXPECT_EQ(k->scheme, WeightScheme::kF32);
  for (float value : read_floats(*checkpoint, "model.norm.weight")) EXPECT_EQ(value, 1.0f);
  for (float value : read_floats(*checkpoint, "model.layers.1.post_attention_layernorm.weight"))
    EXPECT_EQ(value, 1.0f);
}

TEST(Dummy, ValuesLookNormal) {
  auto values = read_floats(*open_dummy(), "model.layers.0.mlp.up_proj.weight");
  double sum = 0, squares = 0, fourth = 0;
  for (float value : values) {
    sum += value;
    squares += static_cast<double>(value) * value;
    fourth += std::pow(value, 4.0);
  }
  auto n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 0.001);
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.0008);
  EXPECT_NEAR(fourth / n / std::pow(squares / n, 2.0), 2.7, 0.2);  // normal 3, uniform 1.8
  EXPECT_NE(values, read_floats(*open_dummy(), "model.layers.0.mlp.gate_proj.weight"));
}

// Nor is a row another one, or its neighbour's values some columns on.
TEST(Dummy, RowsHaveNothingToDoWithEachOther) {
  auto checkpoint = open_dummy();
  const TensorInfo& tensor = *checkpoint->find("model.layers.0.mlp.down_proj.weight");
  auto values = read_floats(*checkpoint, tensor.name);
  const int64_t cols = tensor.cols;
  for (int64_t lag = 0; lag < cols / 2; ++lag) {
    double same = 0;
    const int64_t pairs = (tensor.rows - 1) * (cols - lag);
    for (int64_t row = 0; row + 1 < tensor.rows; ++row)
      for (int64_t col = 0; col + lag < cols; ++col)
        same += static_cast<double>(values[static_cast<size_t>(row * cols + col)]) *
                values[static_cast<size_t>((row + 1) * cols + col + lag)];
    const double correlation = same / static_cast<double>(pairs) / (0.02 * 0.02);
    EXPECT_LT(std::abs(correlation), 5.0 / std::sqrt(static_cast<double>(pairs))) << "lag " << lag;
  }
}

// A slice of any layout holds the bytes that the whole holds there.
TEST(Dummy, SlicesAgreeWithTheWhole) {
  for (auto scheme : {WeightScheme::kF32, WeightScheme::kBF16, WeightScheme::kQ4_1, WeightScheme::kQ8_0}) {
    auto checkpoint = open_dummy(scheme);
    const TensorInfo& tensor = *checkpoint->find("model.layers.0.mlp.down_proj.weight");
    std::vector<std::byte> all(static_cast<size_t>(tensor.bytes()));
    SliceRequest everything = whole(tensor, all.data());
    ASSERT_OK(checkpoint->read(std::span(&everything, 1)));
    int64_t part_bytes = row_bytes(scheme, 32);
    std::vector<std::byte> part(static_cast<size_t>(20 * part_bytes));
    SliceRequest request{.name = tensor.name,
                         .row_begin = 7,
                         .row_count = 20,
                         .col_begin = 64,
                         .col_count = 32,
                         .destination = part.data()};
    ASSERT_OK(checkpoint->read(std::span(&request, 1)));
    for (int64_t row = 0; row < 20; ++row)
      EXPECT_TRUE(std::equal(part.begin() + row * part_bytes,
                             part.begin() + (row + 1) * part_bytes,
                             all.begin() + (row + 7) * tensor.row_bytes() + row_bytes(scheme, 64)))
          << to_string(scheme) << " row " << row;
  }
}

TEST(Dummy, GgufHeadersGiveSchemes) {
  TempDir dir;
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kQ4_0);
  auto checkpoint = Checkpoint::open(dir / "m.gguf", LoadFormat::kDummy);
  ASSERT_OK(checkpoint);
  EXPECT_EQ((*checkpoint)->find("model.layers.0.self_attn.q_proj.weight")->scheme, WeightScheme::kQ4_0);
  for (float value : read_floats(**checkpoint, "model.norm.weight")) EXPECT_EQ(value, 1.0f);
}

TEST(Dummy, UnknownFamiliesAreRefused) {
  ModelConfig config = tiny_config();
  config.architecture = "mamba";
  expect_failure(
      expected_tensors(config, WeightScheme::kBF16), StatusCode::kUnimplemented, {"mamba", "llama"});
}

}  // namespace
}  // namespace llm_dist::checkpoint
