// What the loader puts into a rank's memory where the weights of linear layers are f8_e4m3, there or in the
// checkpoint.
#include "src/model/loader.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "kernels/cpu/cpu_ops.h"
#include "src/checkpoint/quantize.h"
#include "src/checkpoint/safetensors.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::model {
namespace {

using checkpoint::Checkpoint;
using checkpoint::TensorToWrite;

constexpr int64_t kHidden = 160;  // more than a block of scales
constexpr int64_t kInner = 192;
constexpr const char* kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 7, "hidden_size": 160,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 80,
        "intermediate_size": 192, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": true, "torch_dtype": "bfloat16")";

const std::string kUp = "model.layers.0.mlp.up_proj.weight";      // [kInner, kHidden]
const std::string kDown = "model.layers.0.mlp.down_proj.weight";  // [kHidden, kInner]
const std::string kTable = "model.embed_tokens.weight";

// The model above in a folder, bf16 unless a tensor is replaced.
class Model {
 public:
  Model() {
    char pattern[] = "/tmp/llm-dist-loader-XXXXXX";
    folder_ = ::mkdtemp(pattern);
    for (const auto& [name, rows, cols] : shapes()) add_dense(name, rows, cols);
  }
  ~Model() { std::filesystem::remove_all(folder_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  static float value(const std::string& name, int64_t row, int64_t col) {
    const auto seed = static_cast<int64_t>(std::hash<std::string>{}(name) % 1000);
    return to_float(to_bf16(std::sin(static_cast<float>(seed + 37 * row + 11 * col)) *
                            static_cast<float>(1 + row % 5) * (col % 97 == 0 ? 4.0f : 0.1f)));
  }
  void put(const std::string& name, DType dtype, std::vector<int64_t> shape, std::vector<std::byte> bytes) {
    tensors_[name] = {dtype, std::move(shape), std::move(bytes)};
  }
  template <typename T>
  void set(const std::string& name, int64_t index, T value) {
    std::memcpy(
        tensors_[name].bytes.data() + index * static_cast<int64_t>(sizeof value), &value, sizeof value);
  }
  // The tensor as codes, code(row, col) each, and its scales.
  void make_f8(const std::string& name, std::vector<int64_t> scales_shape, const std::vector<float>& scales) {
    const std::vector<int64_t> shape = tensors_[name].shape;
    std::vector<std::byte> codes;
    for (int64_t row = 0; row < shape[0]; ++row)
      for (int64_t col = 0; col < shape[1]; ++col) codes.push_back(code(row, col));
    put(name, DType::kF8E4M3, shape, std::move(codes));
    std::vector<std::byte> bytes(scales.size() * sizeof(float));
    std::memcpy(bytes.data(), scales.data(), bytes.size());
    put(name + "_scale", DType::kF32, std::move(scales_shape), std::move(bytes));
    quantized_ = true;
  }
  static std::byte code(int64_t row, int64_t col) {
    return static_cast<std::byte>((row * 31 + col * 7) % 0x7f);
  }

  std::unique_ptr<Checkpoint> open() const {
    std::vector<TensorToWrite> written;
    for (const auto& [name, tensor] : tensors_)
      written.push_back(checkpoint::tensor_in_memory(name, tensor.dtype, tensor.shape, tensor.bytes.data()));
    CHECK(checkpoint::write_safetensors(folder_ + "/model.safetensors", written).ok());
    std::ofstream(folder_ + "/config.json")
        << kConfig << (quantized_ ? R"(, "quantization_config": {"quant_method": "fp8"}})" : "}");
    auto opened = Checkpoint::open(folder_, checkpoint::LoadFormat::kAuto, {.load_tokenizer = false});
    CHECK(opened.ok(), "{}", opened.status().to_string());
    return std::move(opened).value();
  }

 private:
  struct Stored {
    DType dtype = DType::kBF16;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  struct Named {
    std::string name;
    int64_t rows;
    int64_t cols;
  };
  static std::vector<Named> shapes() {
    const std::string layer = "model.layers.0.";
    return {{kTable, 7, kHidden},
            {"model.norm.weight", kHidden, 1},
            {layer + "input_layernorm.weight", kHidden, 1},
            {layer + "post_attention_layernorm.weight", kHidden, 1},
            {layer + "self_attn.q_proj.weight", 160, kHidden},
            {layer + "self_attn.k_proj.weight", 80, kHidden},
            {layer + "self_attn.v_proj.weight", 80, kHidden},
            {layer + "self_attn.o_proj.weight", kHidden, 160},
            {layer + "mlp.gate_proj.weight", kInner, kHidden},
            {kUp, kInner, kHidden},
            {kDown, kHidden, kInner}};
  }
  void add_dense(const std::string& name, int64_t rows, int64_t cols) {
    std::vector<std::byte> bytes(static_cast<size_t>(2 * rows * cols));
    put(name, DType::kBF16, cols == 1 ? std::vector{rows} : std::vector{rows, cols}, std::move(bytes));
    for (int64_t i = 0; i < rows * cols; ++i) set(name, i, to_bf16(value(name, i / cols, i % cols)));
  }

  std::string folder_;
  std::map<std::string, Stored> tensors_;
  bool quantized_ = false;
};

// One matrix of a rank, loaded on the CPU.
struct Loaded {
  Status status;
  LoadPlan plan;
  Weight weight;
  LoadedWeights memory;

  float scale(int64_t row) const { return weight.parts[1].as<float>()[row]; }
  std::byte code(int64_t row, int64_t col) const {
    return static_cast<const std::byte*>(weight.parts[0].data)[row * weight.k + col];
  }
};

class LoaderTest : public testing::Test {
 protected:
  // Pieces of whole width unless they say otherwise; `linear`: of a linear layer.
  std::unique_ptr<Loaded> load(const Checkpoint& checkpoint,
                               std::vector<parallel::WeightPiece> pieces,
                               bool linear,
                               const HeldWeights& held,
                               const kernels::OpTable& ops = kernels::cpu_ops()) {
    auto loaded = std::make_unique<Loaded>();
    parallel::MatrixSlot slot{.target = &loaded->weight, .cols = pieces.front().col_count};
    for (parallel::WeightPiece& piece : pieces) {
      piece.dest_row = slot.rows;
      slot.rows += piece.row_count;
    }
    slot.pieces = std::move(pieces);
    slot.is_linear = linear;
    parallel::WeightMap map;
    map.matrices.push_back(std::move(slot));
    auto plan = plan_load(map, checkpoint, ops, held);
    loaded->status = plan.status();
    if (!plan.ok()) return loaded;
    loaded->plan = *plan;
    auto memory =
        load_weights(map, *plan, checkpoint, held.activation_dtype, *backend_, *stream_, {.threads = 3});
    loaded->status = memory.status();
    if (memory.ok()) loaded->memory = std::move(memory).value();
    return loaded;
  }

  static constexpr HeldWeights kAsked{.activation_dtype = DType::kBF16, .linear = WeightScheme::kF8E4M3};
  static constexpr HeldWeights kAsStored{.activation_dtype = DType::kBF16, .linear = {}};

  std::unique_ptr<device::Backend> backend_ = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> stream_ = backend_->make_stream("load");
};

parallel::WeightPiece rows_of(const std::string& name, int64_t begin, int64_t count, int64_t cols) {
  return {name, begin, count, 0, cols};
}

TEST_F(LoaderTest, QuantizesLinearLayersByRow) {
  Model model;
  auto checkpoint = model.open();
  auto loaded =
      load(*checkpoint, {rows_of(kUp, 0, kInner, kHidden), rows_of(kTable, 2, 3, kHidden)}, true, kAsked);
  ASSERT_TRUE(loaded->status.ok()) << loaded->status.to_string();
  EXPECT_EQ(loaded->weight.scheme, WeightScheme::kF8E4M3);
  EXPECT_EQ(loaded->plan.weight_bytes, (kInner + 3) * (kHidden + 4));
  EXPECT_EQ(loaded->plan.weight_bytes, loaded->weight.bytes());
  for (int64_t row = 0; row < kInner + 3; ++row) {
    const std::string& name = row < kInner ? kUp : kTable;
    const int64_t from = row < kInner ? row : row - kInner + 2;
    float largest = 0;
    for (int64_t col = 0; col < kHidden; ++col)
      largest = std::max(largest, std::abs(Model::value(name, from, col)));
    ASSERT_EQ(loaded->scale(row), largest / 448.0f);
    for (int64_t col = 0; col < kHidden; ++col)
      ASSERT_EQ(static_cast<uint8_t>(loaded->code(row, col)),
                to_f8e4m3(Model::value(name, from, col) / loaded->scale(row)).bits);
  }
}

TEST_F(LoaderTest, TablesStayAsTheyAre) {
  Model model;
  auto checkpoint = model.open();
  auto loaded = load(*checkpoint, {rows_of(kTable, 0, 7, kHidden)}, false, kAsked);
  ASSERT_TRUE(loaded->status.ok()) << loaded->status.to_string();
  EXPECT_EQ(loaded->weight.scheme, WeightScheme::kBF16);
}

// Every share of every cut has the codes and scales of the whole.
TEST_F(LoaderTest, SharesAreThoseOfTheWhole) {
  Model model;
  auto checkpoint = model.open();
  auto up = load(*checkpoint, {rows_of(kUp, 0, kInner, kHidden)}, true, kAsked);
  auto down = load(*checkpoint, {rows_of(kDown, 0, kHidden, kInner)}, true, kAsked);
  for (int64_t ranks : {2, 3}) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t count = kInner / ranks;
      const int64_t begin = rank * count;
      auto rows = load(*checkpoint, {rows_of(kUp, begin, count, kHidden)}, true, kAsked);
      auto cols = load(*checkpoint, {{kDown, 0, kHidden, begin, count}}, true, kAsked);
      ASSERT_TRUE(rows->status.ok() && cols->status.ok());
      for (int64_t row = 0; row < count; ++row) {
        ASSERT_EQ(rows->scale(row), up->scale(begin + row));
        for (int64_t col = 0; col < kHidden; ++col)
          ASSERT_EQ(rows->code(row, col), up->code(begin + row, col));
      }
      for (int64_t row = 0; row < kHidden; ++row) {
        ASSERT_EQ(cols->scale(row), down->scale(row));
        for (int64_t col = 0; col < count; ++col)
          ASSERT_EQ(cols->code(row, col), down->code(row, begin + col));
      }
    }
  }
}

TEST_F(LoaderTest, WhatIsNotFiniteIsRefused) {
  for (float bad : {std::nanf(""), HUGE_VALF}) {
    Model model;
    model.set(kDown, 17 * kInner + 5, to_bf16(bad));
    auto checkpoint = model.open();
    // Another rank's columns: all say so.
    auto loaded = load(*checkpoint, {{kDown, 0, kHidden, 96, 96}}, true, kAsked);
    EXPECT_EQ(loaded->status.code(), StatusCode::kDataLoss);
    EXPECT_NE(loaded->status.message().find(kDown + " row 17"), std::string::npos)
        << loaded->status.message();
    EXPECT_TRUE(load(*checkpoint, {{kDown, 0, kHidden, 0, kInner}}, true, kAsStored)->status.ok());
  }
}

TEST_F(LoaderTest, WhatFloat16CannotHoldIsRefused) {
  constexpr HeldWeights kHalf{.activation_dtype = DType::kF16, .linear = {}};
  kernels::OpTable dense_only = kernels::cpu_ops();  // as GPUs'
  dense_only.takes_weight = [](WeightScheme scheme, DType dtype) { return scheme == scheme_of(dtype); };
  const std::vector<parallel::WeightPiece> pieces = {{kDown, 0, kHidden, 0, kInner}};
  Model model;
  model.set(kDown, 17 * kInner + 5, to_bf16(-65536.0f));
  auto checkpoint = model.open();
  auto loaded = load(*checkpoint, pieces, true, kHalf, dense_only);
  EXPECT_EQ(loaded->status.code(), StatusCode::kDataLoss);
  for (const std::string& word : {kDown + " row 17 ", std::string("65536"), std::string("--dtype bfloat16")})
    EXPECT_NE(loaded->status.message().find(word), std::string::npos) << loaded->status.message();
  EXPECT_TRUE(load(*checkpoint, pieces, true, kAsStored, dense_only)->status.ok());
  // So it stands in the checkpoint.
  model.set(kDown, 17 * kInner + 5, to_bf16(HUGE_VALF));
  EXPECT_TRUE(load(*model.open(), pieces, true, kHalf, dense_only)->status.ok());
}

TEST_F(LoaderTest, CodesWithAScaleARowAreTakenAsTheyAre) {
  Model model;
  std::vector<float> by_row(kHidden);
  for (int64_t row = 0; row < kHidden; ++row)
    by_row[static_cast<size_t>(row)] = 0.01f * static_cast<float>(1 + row);
  model.make_f8(kDown, {kHidden, 1}, by_row);
  model.make_f8(kUp, {}, {0.25f});
  auto checkpoint = model.open();
  for (const HeldWeights& held : {kAsStored, kAsked}) {
    auto down = load(*checkpoint, {{kDown, 3, 50, 64, 128}}, true, held);
    ASSERT_TRUE(down->status.ok()) << down->status.to_string();
    ASSERT_EQ(down->weight.scheme, WeightScheme::kF8E4M3);
    for (int64_t row = 0; row < 50; ++row) {
      ASSERT_EQ(down->scale(row), by_row[static_cast<size_t>(row + 3)]);
      for (int64_t col = 0; col < 128; ++col) ASSERT_EQ(down->code(row, col), Model::code(row + 3, col + 64));
    }
    auto up = load(*checkpoint, {rows_of(kUp, 0, 10, kHidden)}, true, held);
    ASSERT_EQ(up->weight.scheme, WeightScheme::kF8E4M3);
    EXPECT_EQ(up->scale(9), 0.25f);
  }
  // Beside a dense one, in a layer that looks rows up, on a device without such kernels: multiplied out.
  kernels::OpTable dense_only = kernels::cpu_ops();
  dense_only.takes_weight = [](WeightScheme scheme, DType dtype) { return scheme == scheme_of(dtype); };
  const parallel::WeightPiece up = rows_of(kUp, 0, 10, kHidden);
  for (const auto& loaded : {load(*checkpoint, {up, rows_of(kTable, 0, 7, kHidden)}, true, kAsStored),
                             load(*checkpoint, {up}, false, kAsStored),
                             load(*checkpoint, {up}, true, kAsStored, dense_only)}) {
    ASSERT_TRUE(loaded->status.ok()) << loaded->status.to_string();
    ASSERT_EQ(loaded->weight.scheme, WeightScheme::kBF16);
    const float code = to_float(Float8E4M3{std::to_integer<uint8_t>(Model::code(9, 11))});
    EXPECT_EQ(to_float(static_cast<const BFloat16*>(loaded->weight.parts[0].data)[9 * kHidden + 11]),
              0.25f * code);
  }
  auto refused = load(*checkpoint, {up}, true, kAsked, dense_only);
  EXPECT_EQ(refused->status.code(), StatusCode::kInvalidArgument);
}

TEST_F(LoaderTest, ScalesOfBlocksAreMultipliedOut) {
  Model model;
  model.make_f8(kDown, {2, 2}, {1.0f, 2.0f, 4.0f, 8.0f});  // [160, 192] in blocks of 128
  auto checkpoint = model.open();
  auto dense = load(*checkpoint, {{kDown, 100, 60, 64, 128}}, true, kAsStored);
  ASSERT_TRUE(dense->status.ok()) << dense->status.to_string();
  ASSERT_EQ(dense->weight.scheme, WeightScheme::kBF16);
  auto value = [](int64_t row, int64_t col) {
    const float scale = static_cast<float>(1 << (row / 128 * 2 + col / 128));
    return scale * to_float(Float8E4M3{std::to_integer<uint8_t>(Model::code(row, col))});
  };
  for (int64_t row = 0; row < 60; ++row)
    for (int64_t col = 0; col < 128; ++col)
      ASSERT_EQ(to_float(static_cast<const BFloat16*>(dense->weight.parts[0].data)[row * 128 + col]),
                value(row + 100, col + 64));
  // Asked for, rows get a scale of their own.
  auto by_row = load(*checkpoint, {{kDown, 100, 60, 64, 128}}, true, kAsked);
  ASSERT_EQ(by_row->weight.scheme, WeightScheme::kF8E4M3);
  for (int64_t row = 0; row < 60; ++row) {
    float largest = 0;
    for (int64_t col = 0; col < kInner; ++col) largest = std::max(largest, value(row + 100, col));
    ASSERT_EQ(by_row->scale(row), largest / 448.0f);
  }
}

}  // namespace
}  // namespace llm_dist::model
