#include "tests/checkpoint/tiny_model.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/checkpoint/dummy.h"
#include "src/checkpoint/gguf_model.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/quantize.h"

namespace llm_dist::checkpoint {

TempDir::TempDir() {
  std::string pattern = (std::filesystem::temp_directory_path() / "llm-dist-test-XXXXXX").string();
  CHECK(::mkdtemp(pattern.data()) != nullptr, "mkdtemp {}", pattern);
  path_ = pattern;
}
TempDir::~TempDir() { std::filesystem::remove_all(path_); }

void write_file(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

ModelConfig tiny_config() {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 64;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  config.vocab_size = 50;
  config.max_position_embeddings = 512;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  config.torch_dtype = DType::kF32;
  config.bos_id = 1;
  config.eos_ids = {2};
  return config;
}

std::string tiny_config_json() { return write_hf_config(tiny_config())->config_json; }

// Multiples of 1/64 below 8: exact in bf16 for no more than 8 significant bits, so every dtype holds them.
float tiny_value(std::string_view name, int64_t row, int64_t col) {
  auto hash = static_cast<int64_t>(std::hash<std::string_view>{}(name) % 251);
  return static_cast<float>((hash + row * 37 + col * 11) % 251 - 125) / 64.0f;
}

std::vector<TensorInfo> tiny_tensors(const ModelConfig& config) {
  return *expected_tensors(config, WeightScheme::kF32);
}

std::vector<float> tiny_matrix(const TensorInfo& tensor) {
  std::vector<float> values;
  for (int64_t row = 0; row < tensor.rows; ++row)
    for (int64_t col = 0; col < tensor.cols; ++col) values.push_back(tiny_value(tensor.name, row, col));
  return values;
}

void write_tiny_hf(const TempDir& dir, DType dtype, int shards, const ModelConfig& config) {
  auto tensors = tiny_tensors(config);
  std::vector<std::vector<std::byte>> data;
  std::vector<std::vector<TensorToWrite>> files(static_cast<size_t>(shards));
  std::string weight_map;
  auto file_name = [&](size_t shard) {
    return shards == 1 ? std::string("model.safetensors") : format("model-{}.safetensors", shard);
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    auto values = tiny_matrix(tensor);
    data.emplace_back(values.size() * static_cast<size_t>(dtype_bytes(dtype)));
    quantize_row(scheme_of(dtype), values.data(), data.back().data(), static_cast<int64_t>(values.size()));
    std::vector<int64_t> shape = {tensor.rows};
    if (tensor.cols > 1) shape.push_back(tensor.cols);
    size_t shard = i % static_cast<size_t>(shards);
    files[shard].push_back(tensor_in_memory(tensor.name, dtype, shape, data.back().data()));
    weight_map += format("{}\"{}\":\"{}\"", i == 0 ? "" : ",", tensor.name, file_name(shard));
  }
  for (size_t shard = 0; shard < files.size(); ++shard)
    ASSERT_OK(write_safetensors(dir / file_name(shard), files[shard], {{"format", "pt"}}));
  if (shards > 1)
    write_file(dir / "model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":{" + weight_map + "}}");
  write_file(dir / "config.json", write_hf_config(config)->config_json);
}

GgufMetadata tiny_gguf_metadata(const ModelConfig& config) {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  for (int64_t id = 0; id < config.vocab_size; ++id) {
    tokens.push_back(format("<{}>", id));
    types.push_back(id < 3 ? 3 : 1);
  }
  return {{"general.architecture", std::string("llama")},
          {"llama.block_count", config.num_layers},
          {"llama.context_length", config.max_position_embeddings},
          {"llama.embedding_length", config.hidden_size},
          {"llama.feed_forward_length", config.intermediate_size},
          {"llama.attention.head_count", config.num_heads},
          {"llama.attention.head_count_kv", config.num_kv_heads},
          {"llama.rope.freq_base", 10000.0},
          {"llama.rope.dimension_count", config.head_dim},
          {"llama.attention.layer_norm_rms_epsilon", 1e-5},
          {"tokenizer.ggml.model", std::string("gpt2")},
          {"tokenizer.ggml.pre", std::string("smollm")},
          {"tokenizer.ggml.tokens", tokens},
          {"tokenizer.ggml.token_type", types},
          {"tokenizer.ggml.merges", std::vector<std::string>{"a b", "c d"}},
          {"tokenizer.ggml.bos_token_id", int64_t{1}},
          {"tokenizer.ggml.eos_token_id", int64_t{2}},
          {"tokenizer.ggml.eot_token_id", int64_t{0}},
          {"tokenizer.ggml.add_bos_token", false},
          {"tokenizer.chat_template", std::string("{{ messages }}")}};
}

std::vector<GgufTensorToWrite> tiny_gguf_tensors(WeightScheme linear, const ModelConfig& config) {
  std::vector<GgufTensorToWrite> out;
  for (const TensorInfo& tensor : tiny_tensors(config)) {
    bool vector = tensor.cols == 1;
    GgufTensorToWrite written{.name = gguf_name_of_hf(tensor.name),
                              .scheme = vector ? WeightScheme::kF32 : linear,
                              .dims = {},
                              .data = {}};
    written.dims =
        vector ? std::vector<int64_t>{tensor.rows} : std::vector<int64_t>{tensor.cols, tensor.rows};
    auto values = tiny_matrix(tensor);
    int64_t row_size = row_bytes(written.scheme, tensor.cols);
    written.data.resize(static_cast<size_t>(tensor.rows * row_size));
    bool rotary =
        tensor.name.find("q_proj") != std::string::npos || tensor.name.find("k_proj") != std::string::npos;
    for (int64_t row = 0; row < tensor.rows; ++row) {
      // The permutation as llama.cpp's converter states it: reshape to [heads, 2, head_dim / 2,
      // cols], swap the middle axes.
      const int64_t pairs = config.head_dim / 2;
      int64_t head = row / config.head_dim, half = row % config.head_dim / pairs, pair = row % pairs;
      int64_t target = rotary ? head * config.head_dim + pair * 2 + half : row;
      quantize_row(written.scheme,
                   values.data() + row * tensor.cols,
                   written.data.data() + target * row_size,
                   tensor.cols);
    }
    out.push_back(std::move(written));
  }
  return out;
}

void write_tiny_gguf(const std::string& path, WeightScheme linear, const ModelConfig& config) {
  ASSERT_OK(write_gguf(path, tiny_gguf_metadata(config), tiny_gguf_tensors(linear, config)));
}

std::vector<float> read_floats(const Checkpoint& checkpoint, std::string_view name) {
  const TensorInfo* tensor = checkpoint.find(name);
  CHECK(tensor != nullptr, "no tensor {}", name);
  std::vector<std::byte> stored(static_cast<size_t>(tensor->bytes()));
  SliceRequest request = whole(*tensor, stored.data());
  auto stats = checkpoint.read(std::span(&request, 1));
  CHECK(stats.ok(), "{}", stats.status().to_string());
  std::vector<float> values(static_cast<size_t>(tensor->rows * tensor->cols));
  for (int64_t row = 0; row < tensor->rows; ++row)
    dequantize_row(tensor->scheme,
                   stored.data() + row * tensor->row_bytes(),
                   values.data() + row * tensor->cols,
                   tensor->cols);
  return values;
}

}  // namespace llm_dist::checkpoint
