#include <limits>

#include "src/checkpoint/gguf.h"

namespace llm_dist::checkpoint {
namespace {

using gguf::ValueType;

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void put_string(std::string& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out.append(text);
}

void put_type(std::string& out, ValueType type) { put(out, static_cast<uint32_t>(type)); }

void put_array_head(std::string& out, ValueType type, size_t count) {
  put_type(out, ValueType::kArray);
  put_type(out, type);
  put<uint64_t>(out, count);
}

struct ValueWriter {
  std::string& out;

  void operator()(bool value) const {
    put_type(out, ValueType::kBool);
    put<uint8_t>(out, value ? 1 : 0);
  }
  void operator()(int64_t value) const {
    bool small = value >= 0 && value <= std::numeric_limits<uint32_t>::max();
    put_type(out, small ? ValueType::kU32 : ValueType::kI64);
    if (small) put(out, static_cast<uint32_t>(value));
    if (!small) put(out, value);
  }
  void operator()(double value) const {
    put_type(out, ValueType::kF32);
    put(out, static_cast<float>(value));
  }
  void operator()(const std::string& value) const {
    put_type(out, ValueType::kString);
    put_string(out, value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    put_array_head(out, ValueType::kI32, values.size());
    for (int64_t value : values) put(out, static_cast<int32_t>(value));
  }
  void operator()(const std::vector<double>& values) const {
    put_array_head(out, ValueType::kF32, values.size());
    for (double value : values) put(out, static_cast<float>(value));
  }
  void operator()(const std::vector<std::string>& values) const {
    put_array_head(out, ValueType::kString, values.size());
    for (const std::string& value : values) put_string(out, value);
  }
};

int64_t aligned(int64_t bytes) {
  return (bytes + gguf::kDefaultAlignment - 1) / gguf::kDefaultAlignment * gguf::kDefaultAlignment;
}

}  // namespace

Status write_gguf(const std::string& path,
                  const GgufMetadata& metadata,
                  std::span<const GgufTensorToWrite> tensors) {
  std::string header = "GGUF";
  put<uint32_t>(header, 3);
  put<uint64_t>(header, tensors.size());
  put<uint64_t>(header, metadata.size());
  for (const auto& [key, value] : metadata) {
    put_string(header, key);
    std::visit(ValueWriter{header}, value);
  }
  int64_t offset = 0;
  for (const GgufTensorToWrite& tensor : tensors) {
    put_string(header, tensor.name);
    put(header, static_cast<uint32_t>(tensor.dims.size()));
    for (int64_t dim : tensor.dims) put(header, dim);
    put(header, gguf::type_number(tensor.scheme));
    put(header, offset);
    offset += aligned(static_cast<int64_t>(tensor.data.size()));
  }
  FileWriter writer(path);
  writer.write(header.data(), static_cast<int64_t>(header.size()));
  for (const GgufTensorToWrite& tensor : tensors) {
    writer.write_zeros(aligned(writer.position()) - writer.position());
    writer.write(tensor.data.data(), static_cast<int64_t>(tensor.data.size()));
  }
  return writer.finish();
}

}  // namespace llm_dist::checkpoint
