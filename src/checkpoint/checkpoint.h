// Checkpoint: a model's configuration, tokenizer and weights, out of a Hugging Face directory, a GGUF file,
// or made up. Opening reads headers and small files only; weights come by read().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "src/base/status.h"
#include "src/base/tokenizer_spec.h"
#include "src/checkpoint/file.h"
#include "src/checkpoint/model_config.h"
#include "src/checkpoint/slice.h"
#include "src/checkpoint/tensor_info.h"

namespace llm_dist::checkpoint {

enum class LoadFormat : uint8_t { kAuto, kSafetensors, kGguf, kDummy };
std::string_view to_string(LoadFormat format);
// "auto", "safetensors", "gguf" or "dummy".
Result<LoadFormat> parse_load_format(std::string_view name);

struct CheckpointOptions {
  bool load_tokenizer = true;  // false on ranks that need none: saves its reading and its memory
  // Scheme of dummy matrices where only a config.json stands; by default that of its torch_dtype.
  std::optional<WeightScheme> dummy_scheme;
  OpenFile open_file = open_posix_file;
};

class Checkpoint {
 public:
  // `path`: a directory with config.json and *.safetensors (index or not), a .gguf file, a directory with
  // exactly one, or for kDummy any of them or a directory with config.json alone. The tensors that a Llama
  // decoder needs are checked for presence and shape. Errors name the file and the field or tensor.
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& path,
                                                  LoadFormat format = LoadFormat::kAuto,
                                                  const CheckpointOptions& options = {});

  const std::string& path() const { return path_; }
  LoadFormat load_format() const { return format_; }  // never kAuto
  const ModelConfig& config() const { return config_; }
  const TokenizerSpec& tokenizer() const { return tokenizer_; }  // empty without load_tokenizer
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr: no such tensor
  // The scales of an f8_e4m3 tensor (f8_scales.h reads them); nullptr: there are none.
  const TensorInfo* scales_of(const TensorInfo& tensor) const;
  const std::string& file_of(const TensorInfo& tensor) const;  // for messages; the directory for dummies

  // Fills every request's memory. kNotFound or kInvalidArgument naming the tensor, kDataLoss where a file
  // ends early. The same call serves files and dummies.
  Result<ReadStats> read(std::span<const SliceRequest> requests, const ReadOptions& options = {}) const;

 private:
  Checkpoint(std::string path, LoadFormat format) : path_(std::move(path)), format_(format) {}
  Status open_safetensors(const CheckpointOptions& options);
  Status open_gguf(const std::string& file_path, const CheckpointOptions& options);
  Status open_dummy_config(const CheckpointOptions& options);
  Status read_hf_files(const CheckpointOptions& options);
  Status add_tensors(std::vector<TensorInfo> tensors);
  Status check_tensors() const;
  Status check_scales() const;

  std::string path_;
  LoadFormat format_;
  ModelConfig config_;
  bool config_names_tying_ = true;
  TokenizerSpec tokenizer_;
  std::vector<std::unique_ptr<RandomAccessFile>> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

// Of a directory with tokenizer.json, whatever else stands there, of a .gguf file, or of a directory with
// exactly one. kNotFound where there is none.
Result<TokenizerSpec> read_tokenizer(const std::string& path);

}  // namespace llm_dist::checkpoint
