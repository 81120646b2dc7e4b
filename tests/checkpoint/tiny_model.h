// A tiny Llama checkpoint with known values, written to a temporary directory in either format.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/gguf.h"
#include "src/checkpoint/safetensors.h"

namespace llm_dist::checkpoint {

class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void write_file(const std::string& path, std::string_view text);
std::string read_file(const std::string& path);

// hidden 64, 2 layers, 4 query and 2 KV heads of 16, FFN 96, vocabulary 50, tied embeddings.
ModelConfig tiny_config();
std::string tiny_config_json();

// The value at a place of a tensor in Hugging Face order; every place of every tensor has its own.
float tiny_value(std::string_view name, int64_t row, int64_t col);

// The tensors of tiny_config(), f32 and in order.
std::vector<TensorInfo> tiny_tensors(const ModelConfig& config = tiny_config());
// The whole tensor, row by row.
std::vector<float> tiny_matrix(const TensorInfo& tensor);

// Writes DIR/config.json and `shards` safetensors files, with an index where there is more than one.
void write_tiny_hf(const TempDir& dir,
                   DType dtype = DType::kF32,
                   int shards = 1,
                   const ModelConfig& config = tiny_config());

// Writes the GGUF file as llama.cpp would: its names, q and k permuted, matrices in `linear`, vectors f32.
GgufMetadata tiny_gguf_metadata(const ModelConfig& config = tiny_config());
std::vector<GgufTensorToWrite> tiny_gguf_tensors(WeightScheme linear,
                                                 const ModelConfig& config = tiny_config());
void write_tiny_gguf(const std::string& path, WeightScheme linear, const ModelConfig& config = tiny_config());

// The whole of a tensor, read and dequantized.
std::vector<float> read_floats(const Checkpoint& checkpoint, std::string_view name);

#define ASSERT_OK(expr)                                        \
  do {                                                         \
    auto ok_status_ = ::llm_dist::checkpoint::status_of(expr); \
    ASSERT_TRUE(ok_status_.ok()) << ok_status_.to_string();    \
  } while (false)

inline Status status_of(Status status) { return status; }
template <typename T>
Status status_of(const Result<T>& result) {
  return result.status();
}

// The status failed with this code, and its message holds every one of the words.
template <typename T>
void expect_failure(const T& outcome, StatusCode code, std::initializer_list<std::string_view> words) {
  Status status = status_of(outcome);
  EXPECT_EQ(to_string(status.code()), to_string(code)) << status.to_string();
  for (std::string_view word : words)
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "no '" << word << "' in: " << status.message();
}

}  // namespace llm_dist::checkpoint
