#include "src/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "src/checkpoint/convert.h"
#include "src/checkpoint/progress.h"
#include "tests/checkpoint/tiny_model.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

TEST(Checkpoint, OneFileAndManyAreTheSame) {
  TempDir one, many;
  write_tiny_hf(one, DType::kBF16, 1);
  write_tiny_hf(many, DType::kBF16, 4);
  auto a = Checkpoint::open(one.path());
  auto b = Checkpoint::open(many.path(), LoadFormat::kSafetensors);
  ASSERT_OK(a);
  ASSERT_OK(b);
  EXPECT_EQ((*a)->load_format(), LoadFormat::kSafetensors);
  EXPECT_EQ((*a)->tensors().size(), (*b)->tensors().size());
  for (const TensorInfo& tensor : (*a)->tensors()) {
    EXPECT_EQ(read_floats(**a, tensor.name), tiny_matrix(tensor));
    EXPECT_EQ(read_floats(**b, tensor.name), tiny_matrix(tensor));
  }
}

TEST(Checkpoint, ShardsWithoutAnIndex) {
  TempDir dir;
  write_tiny_hf(dir, DType::kF32, 2);
  fs::remove(dir / "model.safetensors.index.json");
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  EXPECT_EQ((*checkpoint)->tensors().size(), tiny_tensors().size());
}

TEST(Checkpoint, BrokenIndexes) {
  TempDir dir;
  write_tiny_hf(dir, DType::kF32, 2);
  const std::string index = dir / "model.safetensors.index.json";
  Json good = Json::parse(read_file(index));
  Json bad = good;
  bad["weight_map"]["extra"] = "model-1.safetensors";
  write_file(index, bad.dump());
  expect_failure(Checkpoint::open(dir.path()),
                 StatusCode::kDataLoss,
                 {"model-1.safetensors", "tensor extra is missing"});
  bad = good;
  bad["weight_map"]["model.norm.weight"] = "../outside.safetensors";
  write_file(index, bad.dump());
  expect_failure(
      Checkpoint::open(dir.path()), StatusCode::kDataLoss, {"model.norm.weight", "no plain file name"});
  write_file(index, "{}");
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kDataLoss, {"weight_map"});
  write_file(index, good.dump());
  fs::remove(dir / "model-1.safetensors");
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kNotFound, {"model-1.safetensors", "missing"});
}

TEST(Checkpoint, TensorInTwoShards) {
  TempDir dir;
  write_tiny_hf(dir, DType::kF32, 2);
  fs::remove(dir / "model.safetensors.index.json");
  fs::copy_file(dir / "model-1.safetensors", dir / "model-2.safetensors");
  expect_failure(Checkpoint::open(dir.path()),
                 StatusCode::kDataLoss,
                 {"model-2.safetensors", "stands in", "model-1.safetensors"});
}

TEST(Checkpoint, TensorsThatContradictTheConfiguration) {
  TempDir dir;
  write_tiny_hf(dir);
  Json config = Json::parse(tiny_config_json());
  config["intermediate_size"] = 128;
  write_file(dir / "config.json", config.dump());
  expect_failure(
      Checkpoint::open(dir.path()), StatusCode::kDataLoss, {"gate_proj.weight is [96, 64]", "[128, 64]"});
  config = Json::parse(tiny_config_json());
  config["num_hidden_layers"] = 3;
  write_file(dir / "config.json", config.dump());
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kNotFound, {"model.layers.2", "missing"});
  config = Json::parse(tiny_config_json());
  config["tie_word_embeddings"] = false;
  write_file(dir / "config.json", config.dump());
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kNotFound, {"lm_head.weight"});
  config.erase("tie_word_embeddings");
  write_file(dir / "config.json", config.dump());
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  EXPECT_TRUE((*checkpoint)->config().tie_word_embeddings);
}

TEST(Checkpoint, EosIdsOfAllSourcesAreMerged) {
  TempDir dir;
  write_tiny_hf(dir);
  write_file(dir / "generation_config.json", R"({"eos_token_id":[2,5]})");
  write_file(dir / "tokenizer.json", R"({"added_tokens":[{"id":9,"content":"<e>"}],"model":{}})");
  write_file(dir / "tokenizer_config.json", R"({"eos_token":"<e>"})");
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  EXPECT_EQ((*checkpoint)->config().eos_ids, (std::vector<int32_t>{2, 5, 9}));
  EXPECT_EQ((*checkpoint)->tokenizer().eos_ids, (std::vector<int32_t>{2, 5, 9}));
  CheckpointOptions lean;
  lean.load_tokenizer = false;
  auto without = Checkpoint::open(dir.path(), LoadFormat::kAuto, lean);
  ASSERT_OK(without);
  EXPECT_TRUE((*without)->tokenizer().tokenizer_json.empty());
}

TEST(Checkpoint, ATokenizerAlone) {
  TempDir dir;
  auto none = read_tokenizer(dir.path());
  EXPECT_EQ(none.status().code(), StatusCode::kNotFound);
  EXPECT_NE(none.status().message().find("tokenizer.json"), std::string::npos) << none.status().to_string();
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kBF16);
  for (const std::string& path : {dir.path(), dir / "m.gguf"}) {
    auto of_gguf = read_tokenizer(path);
    ASSERT_OK(of_gguf);
    EXPECT_EQ(of_gguf->tokens.size(), 50u);
  }
  // Of a model's weights nothing is asked, nor that there are any.
  ASSERT_OK(write_gguf(dir / "m.gguf", tiny_gguf_metadata(tiny_config()), {}));
  auto of_vocabulary = read_tokenizer(dir.path());
  ASSERT_OK(of_vocabulary);
  EXPECT_EQ(of_vocabulary->tokens.size(), 50u);
  write_file(dir / "tokenizer.json", R"({"added_tokens":[{"id":9,"content":"<e>"}],"model":{}})");
  auto of_json = read_tokenizer(dir.path());
  ASSERT_OK(of_json);
  EXPECT_FALSE(of_json->tokenizer_json.empty());
}

TEST(Checkpoint, GgufGivesTheSameModel) {
  TempDir dir;
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kBF16);
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  EXPECT_EQ((*checkpoint)->load_format(), LoadFormat::kGguf);
  const ModelConfig& config = (*checkpoint)->config();
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 50);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{2, 0}));
  const TokenizerSpec& tokenizer = (*checkpoint)->tokenizer();
  EXPECT_EQ(tokenizer.pre_tokenizer, "smollm");
  EXPECT_EQ(tokenizer.tokens.size(), 50u);
  EXPECT_EQ(tokenizer.bos_token, "<1>");
  EXPECT_EQ(tokenizer.eos_token, "<2>");
  EXPECT_EQ(tokenizer.eos_ids, (std::vector<int32_t>{2, 0}));
  EXPECT_FALSE(tokenizer.add_bos);
  EXPECT_EQ(tokenizer.chat_template, "{{ messages }}");
  for (const TensorInfo& tensor : tiny_tensors())
    EXPECT_EQ(read_floats(**checkpoint, tensor.name), tiny_matrix(tensor)) << tensor.name;
}

TEST(Checkpoint, GgufRopeFactors) {
  TempDir dir;
  auto tensors = tiny_gguf_tensors(WeightScheme::kF32);
  float factors[8] = {1, 1, 1, 2, 3, 4, 8, 8};
  const auto* bytes = reinterpret_cast<const std::byte*>(factors);
  tensors.push_back({.name = "rope_freqs.weight",
                     .scheme = WeightScheme::kF32,
                     .dims = {8},
                     .data = {bytes, bytes + sizeof(factors)}});
  ASSERT_OK(write_gguf(dir / "m.gguf", tiny_gguf_metadata(), tensors));
  auto checkpoint = Checkpoint::open(dir / "m.gguf");
  ASSERT_OK(checkpoint);
  EXPECT_EQ((*checkpoint)->config().rope.frequency_factors, std::vector<float>(factors, factors + 8));
  EXPECT_EQ((*checkpoint)->find("rope_freqs.weight"), nullptr);
  tensors.back().dims = {4};
  tensors.back().data.resize(16);
  ASSERT_OK(write_gguf(dir / "m.gguf", tiny_gguf_metadata(), tensors));
  expect_failure(Checkpoint::open(dir / "m.gguf"), StatusCode::kDataLoss, {"rope_freqs.weight"});
}

TEST(Checkpoint, BadGgufMetadataNamesTheKey) {
  struct Case {
    std::string key;
    GgufValue value;
    StatusCode code;
    std::string_view word;
  };
  const Case cases[] = {
      {"llama.block_count",
       std::string("two"),
       StatusCode::kDataLoss,
       "llama.block_count has an unexpected type"},
      {"llama.block_count", int64_t{3}, StatusCode::kNotFound, "model.layers.2"},
      {"llama.attention.head_count_kv", int64_t{3}, StatusCode::kInvalidArgument, "num_key_value_heads"},
      {"llama.vocab_size", int64_t{51}, StatusCode::kDataLoss, "embed_tokens"},
      {"llama.rope.scaling.type", std::string("yarn"), StatusCode::kUnimplemented, "yarn"},
      {"llama.rope.dimension_count", int64_t{8}, StatusCode::kUnimplemented, "rope.dimension_count"},
      {"tokenizer.ggml.eos_token_id", int64_t{-1}, StatusCode::kDataLoss, "eos_token_id"},
      {"tokenizer.ggml.token_type",
       std::vector<int64_t>{1},
       StatusCode::kDataLoss,
       "1 token types for 50 tokens"},
      {"split.count", int64_t{2}, StatusCode::kUnimplemented, "split"},
      {"general.architecture", std::string("falcon"), StatusCode::kDataLoss, "falcon."},
  };
  for (const Case& c : cases) {
    TempDir dir;
    GgufMetadata metadata = tiny_gguf_metadata();
    metadata[c.key] = c.value;
    ASSERT_OK(write_gguf(dir / "m.gguf", metadata, tiny_gguf_tensors(WeightScheme::kF32)));
    expect_failure(Checkpoint::open(dir / "m.gguf"), c.code, {"m.gguf", c.word});
  }
}

TEST(Checkpoint, WrongPathsSayWhatIsMissing) {
  TempDir dir;
  expect_failure(Checkpoint::open(dir / "nope"), StatusCode::kNotFound, {"nope", "no such file"});
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kNotFound, {"neither"});
  write_file(dir / "config.json", tiny_config_json());
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kNotFound, {"--load-format dummy"});
  expect_failure(Checkpoint::open(dir.path(), LoadFormat::kGguf), StatusCode::kNotFound, {"no .gguf"});
  expect_failure(
      Checkpoint::open(dir.path(), LoadFormat::kSafetensors), StatusCode::kNotFound, {"no *.safetensors"});
  write_tiny_gguf(dir / "a.gguf", WeightScheme::kF32);
  write_tiny_gguf(dir / "b.gguf", WeightScheme::kF32);
  expect_failure(Checkpoint::open(dir.path()), StatusCode::kInvalidArgument, {"2 .gguf files", "a.gguf"});
  write_file(dir / "text.txt", "hello");
  expect_failure(Checkpoint::open(dir / "text.txt"), StatusCode::kDataLoss, {"text.txt"});
}

TEST(Checkpoint, LoadFormatNames) {
  EXPECT_EQ(*parse_load_format("dummy"), LoadFormat::kDummy);
  expect_failure(parse_load_format("pt"), StatusCode::kInvalidArgument, {"pt", "safetensors"});
}

TEST(Convert, GgufBecomesAHuggingFaceDirectory) {
  TempDir dir;
  write_tiny_gguf(dir / "m.gguf", WeightScheme::kQ4_1);
  auto gguf = Checkpoint::open(dir / "m.gguf");
  ASSERT_OK(gguf);
  const std::string tokenizer_json = R"({"added_tokens":[{"id":1,"content":"<1>"}],"model":{}})";
  for (auto dtype : {DType::kF32, DType::kBF16}) {
    const std::string target = dir / (dtype == DType::kF32 ? "f32" : "bf16");
    ASSERT_OK(convert_to_hf(**gguf, tokenizer_json, target, dtype));
    auto hf = Checkpoint::open(target);
    ASSERT_OK(hf);
    EXPECT_EQ((*hf)->config().torch_dtype, dtype);
    EXPECT_EQ((*hf)->config().rms_norm_eps, 1e-5);
    EXPECT_EQ((*hf)->config().rope.theta, 10000.0);
    EXPECT_EQ((*hf)->config().eos_ids, (*gguf)->config().eos_ids);
    EXPECT_EQ((*hf)->tokenizer().chat_template, "{{ messages }}");
    EXPECT_EQ((*hf)->tokenizer().bos_id, 1);
    EXPECT_EQ((*hf)->tokenizer().tokenizer_json, tokenizer_json);
    ASSERT_EQ((*hf)->tensors().size(), (*gguf)->tensors().size());
    for (const TensorInfo& tensor : (*gguf)->tensors()) {
      auto want = read_floats(**gguf, tensor.name);
      auto got = read_floats(**hf, tensor.name);
      ASSERT_EQ(want.size(), got.size());
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_EQ(got[i], dtype == DType::kF32 ? want[i] : to_float(to_bf16(want[i])))
            << tensor.name << " " << i;
    }
  }
  // Nor is one model written over another, or beside the parts of one.
  expect_failure(
      convert_to_hf(**gguf, "", dir / "f32", DType::kF32), StatusCode::kFailedPrecondition, {"config.json"});
  std::filesystem::create_directory(dir / "parts");
  write_file(std::filesystem::path(dir / "parts") / "model.safetensors.index.json", "{}");
  expect_failure(
      convert_to_hf(**gguf, "", dir / "parts", DType::kF32), StatusCode::kFailedPrecondition, {"index.json"});
}

TEST(Convert, WhatFloat16CannotHoldIsRefused) {
  TempDir dir;
  write_tiny_hf(dir);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  std::string file = read_file(dir / "model.safetensors");
  {
    auto checkpoint = Checkpoint::open(dir.path());
    ASSERT_OK(checkpoint);
    const TensorInfo* tensor = (*checkpoint)->find(name);
    ASSERT_NE(tensor, nullptr);
    const float large = 1e5f;
    std::memcpy(file.data() + tensor->offset + 7 * tensor->row_bytes(), &large, sizeof large);
  }
  write_file(dir / "model.safetensors", file);
  auto checkpoint = Checkpoint::open(dir.path());
  ASSERT_OK(checkpoint);
  expect_failure(convert_to_hf(**checkpoint, "", dir / "f16", DType::kF16),
                 StatusCode::kDataLoss,
                 {name + " row 7 ", "bfloat16"});
  ASSERT_OK(convert_to_hf(**checkpoint, "", dir / "bf16", DType::kBF16));
}

TEST(Progress, LineHoldsRateAndTimeLeft) {
  EXPECT_EQ(progress_line("loading", 1'250'000'000, 5'000'000'000, 0.5),
            "loading  1.25 / 5.00 GB   25 %  2.50 GB/s  2 s left");
  EXPECT_EQ(progress_line("loading", 5'000'000'000, 5'000'000'000, 2.0),
            "loading  5.00 / 5.00 GB  100 %  2.50 GB/s");
  EXPECT_EQ(progress_line("loading", 0, 0, 0.0), "loading  0.00 / 0.00 GB  100 %  0.00 GB/s");
}

// Away from a terminal a short load is one line, without control characters.
TEST(Progress, FileGetsPlainLines) {
  TempDir dir;
  std::FILE* out = std::fopen((dir / "log").c_str(), "w");
  ASSERT_NE(out, nullptr);
  {
    ProgressBar bar("loading", out);
    for (int64_t done = 0; done <= 100; ++done) bar.update(done * 1'000'000, 100'000'000);
    bar.finish();
  }
  std::fclose(out);
  std::string text = read_file(dir / "log");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_TRUE(text.starts_with("loading  0.10 / 0.10 GB  100 %")) << text;
}

// What takes time before anything is read, or behind it, is not the rate of reading.
TEST(Progress, RateIsOfTheReadingAlone) {
  TempDir dir;
  std::FILE* out = std::fopen((dir / "log").c_str(), "w");
  ASSERT_NE(out, nullptr);
  constexpr auto kPause = std::chrono::milliseconds(300);
  {
    ProgressBar bar("loading", out);
    std::this_thread::sleep_for(kPause);
    bar.update(0, 1'000'000'000);
    bar.update(1'000'000'000, 1'000'000'000);
    std::this_thread::sleep_for(kPause);
    bar.finish();
  }
  std::fclose(out);
  const std::string text = read_file(dir / "log");
  const size_t at = text.find("%  ");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_GT(std::stod(text.substr(at + 3)), 1 / 0.3) << text;
}

}  // namespace
}  // namespace llm_dist::checkpoint
