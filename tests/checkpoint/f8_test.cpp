// Checkpoints whose linear layers are in f8_e4m3: the forms that their scales come in, and what is refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "src/checkpoint/convert.h"
#include "src/checkpoint/f8_scales.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/quantize.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;

const Json kPlain = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};

Json compressed(const Json& weights) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", weights},
              {"input_activations", {{"num_bits", 8}, {"type", "float"}, {"dynamic", true}}}}}}},
          {"ignore", {"lm_head"}}};
}
const Json kByChannel =
    compressed({{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"dynamic", false}});

// A scale of its own for every one.
float scale_at(int64_t i) { return 0.5f + 0.25f * static_cast<float>(i); }

struct Form {
  const char* suffix = "_scale";  // none: no scales are written
  // Shape of the scales of a [rows, cols] weight.
  std::vector<int64_t> (*shape)(int64_t rows, int64_t cols) = [](int64_t, int64_t) {
    return std::vector<int64_t>{};
  };
  DType dtype = DType::kF32;
};

// The tiny model: vectors and the embedding in f32, the rest as codes of tiny_value with made-up scales.
void write_tiny_f8(const TempDir& dir, const Form& form, const Json& quantization) {
  std::vector<std::vector<std::byte>> data;
  std::vector<TensorToWrite> tensors;
  for (const TensorInfo& tensor : tiny_tensors()) {
    const std::vector<float> values = tiny_matrix(tensor);
    const bool linear = tensor.name.find("_proj") != std::string::npos;
    const DType dtype = linear ? DType::kF8E4M3 : DType::kF32;
    std::vector<int64_t> shape = {tensor.rows};
    if (tensor.cols > 1) shape.push_back(tensor.cols);
    data.emplace_back(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
    quantize_row(scheme_of(dtype), values.data(), data.back().data(), static_cast<int64_t>(values.size()));
    tensors.push_back(tensor_in_memory(tensor.name, dtype, shape, data.back().data()));
    if (!linear) continue;
    const std::vector<int64_t> scales_shape = form.shape(tensor.rows, tensor.cols);
    int64_t count = 1;
    for (int64_t size : scales_shape) count *= size;
    std::vector<float> scales;
    for (int64_t i = 0; i < count; ++i) scales.push_back(scale_at(i));
    data.emplace_back(scales.size() * static_cast<size_t>(dtype_bytes(form.dtype)));
    quantize_row(scheme_of(form.dtype), scales.data(), data.back().data(), count);
    if (form.suffix != nullptr)
      tensors.push_back(
          tensor_in_memory(tensor.name + form.suffix, form.dtype, scales_shape, data.back().data()));
  }
  ASSERT_OK(write_safetensors(dir / "model.safetensors", tensors, {{"format", "pt"}}));
  Json config = Json::parse(tiny_config_json());
  config["quantization_config"] = quantization;
  write_file(dir / "config.json", config.dump());
}

float code_value(float value) { return to_float(to_f8e4m3(value)); }

constexpr const char* kDown = "model.layers.1.mlp.down_proj.weight";  // [64, 96]

// index: which scale a row has.
void expect_scales(const Form& form, const Json& quantization, int64_t (*index)(int64_t row)) {
  TempDir dir;
  write_tiny_f8(dir, form, quantization);
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  EXPECT_EQ((*checkpoint)->config().quantization, WeightScheme::kF8E4M3);
  const TensorInfo* down = (*checkpoint)->find(kDown);
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->scheme, WeightScheme::kF8E4M3);
  auto scales = F8Scales::read(**checkpoint, *down);
  ASSERT_OK(scales);
  EXPECT_TRUE(scales->by_row());
  for (int64_t row = 0; row < down->rows; ++row) EXPECT_EQ(scales->of_row(row), scale_at(index(row)));
}

TEST(F8Checkpoint, EveryFormOfScales) {
  auto one = [](int64_t, int64_t) { return std::vector<int64_t>{1}; };
  auto by_row = [](int64_t rows, int64_t) { return std::vector<int64_t>{rows, 1}; };
  auto vector = [](int64_t rows, int64_t) { return std::vector<int64_t>{rows}; };
  auto first = [](int64_t) { return int64_t{0}; };
  auto row_itself = [](int64_t row) { return row; };
  expect_scales({}, kPlain, first);
  expect_scales({.suffix = "_scale_inv", .shape = one, .dtype = DType::kBF16}, kPlain, first);
  expect_scales({.shape = by_row}, kByChannel, row_itself);
  expect_scales({.shape = vector, .dtype = DType::kBF16}, kByChannel, row_itself);
}

TEST(F8Checkpoint, ScalesOfBlocks) {
  const TensorInfo tensor{.name = "w", .scheme = WeightScheme::kF8E4M3, .rows = 300, .cols = 129};
  auto scales = [](int64_t rows, int64_t cols) {
    return TensorInfo{.name = "s", .scheme = WeightScheme::kF32, .rows = rows, .cols = cols};
  };
  EXPECT_EQ(status_of(check_f8_scales(tensor, scales(3, 2))).to_string(), ok_status().to_string());
  EXPECT_FALSE(f8_scales_by_row(tensor, scales(3, 2)));
  EXPECT_TRUE(f8_scales_by_row(tensor, scales(300, 1)));
  EXPECT_TRUE(f8_scales_by_row(tensor, scales(1, 1)));
  for (auto [rows, cols] : {std::pair<int64_t, int64_t>{2, 2}, {3, 1}, {300, 129}, {1, 129}, {299, 1}})
    expect_failure(check_f8_scales(tensor, scales(rows, cols)), StatusCode::kDataLoss, {"w", "s"});
  TensorInfo codes = scales(1, 1);
  codes.scheme = WeightScheme::kF8E4M3;
  expect_failure(check_f8_scales(tensor, codes), StatusCode::kDataLoss, {"f8_e4m3"});
}

TEST(F8Checkpoint, ConvertsToDenseTensors) {
  TempDir dir;
  TempDir out;
  write_tiny_f8(
      dir, {.shape = [](int64_t rows, int64_t) { return std::vector<int64_t>{rows, 1}; }}, kByChannel);
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  ASSERT_OK(convert_to_hf(**checkpoint, "", out.path(), DType::kF32));
  auto dense = Checkpoint::open(out.path());
  ASSERT_OK(dense);
  EXPECT_EQ((*dense)->config().quantization, std::nullopt);
  EXPECT_EQ((*dense)->find(std::string(kDown) + "_scale"), nullptr);
  const std::vector<float> values = read_floats(**dense, kDown);
  for (int64_t row = 0; row < 64; ++row)
    for (int64_t col = 0; col < 96; ++col)
      ASSERT_EQ(values[static_cast<size_t>(row * 96 + col)],
                code_value(tiny_value(kDown, row, col)) * scale_at(row));
}

TEST(F8Checkpoint, ScalesThatDoNotFitAreRefused) {
  TempDir missing;
  write_tiny_f8(missing, {.suffix = nullptr}, kPlain);
  expect_failure(Checkpoint::open(missing.path()), StatusCode::kNotFound, {"_proj.weight_scale", "missing"});
  TempDir wrong;
  write_tiny_f8(
      wrong, {.shape = [](int64_t rows, int64_t) { return std::vector<int64_t>{rows - 1, 1}; }}, kPlain);
  expect_failure(
      Checkpoint::open(wrong.path()), StatusCode::kDataLoss, {"model.safetensors", "_proj.weight"});
}

Status config_with(const Json& quantization) {
  TempDir dir;
  Json config = Json::parse(tiny_config_json());
  config["quantization_config"] = quantization;
  write_file(dir / "config.json", config.dump());
  return read_hf_config(dir.path()).status();
}

TEST(F8Config, OtherQuantizationsAreRefused) {
  EXPECT_EQ(status_of(config_with(kPlain)).to_string(), ok_status().to_string());
  EXPECT_EQ(status_of(config_with(kByChannel)).to_string(), ok_status().to_string());
  Json blocks = kPlain;
  blocks["weight_block_size"] = {128, 128};
  EXPECT_EQ(status_of(config_with(blocks)).to_string(), ok_status().to_string());
  blocks["weight_block_size"] = {64, 128};
  expect_failure(config_with(blocks), StatusCode::kUnimplemented, {"weight_block_size"});
  const Json wrong = Json::array({Json{{"num_bits", 4}, {"type", "float"}},
                                  Json{{"num_bits", 8}, {"type", "int"}},
                                  Json{{"num_bits", 8}, {"type", "float"}, {"dynamic", true}}});
  for (const Json& weights : wrong)
    expect_failure(config_with(compressed(weights)), StatusCode::kUnimplemented, {"compressed-tensors"});
  Json packed = kByChannel;
  packed["format"] = "pack-quantized";
  expect_failure(config_with(packed), StatusCode::kUnimplemented, {"float-quantized"});
  const Json odd_ones = Json::array({Json(3), Json::array(), Json::object(), Json{{"quant_method", 7}}});
  for (const Json& odd : odd_ones)
    expect_failure(config_with(odd), StatusCode::kUnimplemented, {"quantization_config"});
}

}  // namespace
}  // namespace llm_dist::checkpoint
