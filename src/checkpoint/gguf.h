// The GGUF v3 container: typed metadata, tensor descriptions, aligned data. What the keys mean: gguf_model.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/base/status.h"
#include "src/base/weight.h"
#include "src/checkpoint/file.h"

namespace llm_dist::checkpoint {

// Integers of every width are int64 (bits of a u64), floats double.
using GgufValue = std::variant<bool,
                               int64_t,
                               double,
                               std::string,
                               std::vector<int64_t>,
                               std::vector<double>,
                               std::vector<std::string>>;
using GgufMetadata = std::map<std::string, GgufValue, std::less<>>;

struct GgufTensor {
  std::string name;
  WeightScheme scheme = WeightScheme::kF32;
  std::vector<int64_t> dims;  // fastest first: {cols, rows}
  int64_t offset = 0;         // of the first byte in the file
  int64_t bytes = 0;
};

struct GgufFile {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;
};

struct GgufReadOptions {
  bool keep_tokenizer = true;  // false: arrays under "tokenizer." are skipped, not stored
  bool metadata_only = false;  // no tensor is looked at: they may be of any type, or missing
};

// Reads metadata and tensor descriptions, not the data. kDataLoss, naming file and tensor or key, where
// anything is truncated, too large, out of the file, misaligned or overlapping; kUnimplemented for versions
// other than 3 and tensor types other than F32, F16, BF16, Q8_0, Q4_0, Q4_1.
Result<GgufFile> read_gguf(const RandomAccessFile& file, const GgufReadOptions& options = {});

struct GgufTensorToWrite {
  std::string name;
  WeightScheme scheme = WeightScheme::kF32;
  std::vector<int64_t> dims;  // fastest first
  std::vector<std::byte> data;
};

// Integers are written as u32 where they fit and as i64 elsewhere, floats as f32, as other writers do.
Status write_gguf(const std::string& path,
                  const GgufMetadata& metadata,
                  std::span<const GgufTensorToWrite> tensors);

namespace gguf {
constexpr int64_t kDefaultAlignment = 32;
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};
// ggml's tensor type numbers; -1 for a scheme it lacks.
uint32_t type_number(WeightScheme scheme);
}  // namespace gguf

}  // namespace llm_dist::checkpoint
