#include "src/checkpoint/gguf.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

namespace llm_dist::checkpoint {
namespace {

using gguf::ValueType;

constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxStringBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 23;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;

// Sequential little-endian reading with a sticky error: after one failure every read returns zero, so that
// the parser checks once a record. Counts are compared with the bytes that are left before anything is
// allocated.
class HeaderReader {
 public:
  explicit HeaderReader(const RandomAccessFile& file) : file_(file) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  int64_t position() const { return position_; }
  uint64_t bytes_left() const { return static_cast<uint64_t>(file_.size_bytes() - position_); }

  void fail(const std::string& why) {
    if (ok()) status_ = data_loss(format("{}: {}", file_.path(), why));
  }

  void read(void* destination, uint64_t bytes) {
    auto* out = static_cast<char*>(destination);
    if (!require(bytes)) {
      std::memset(destination, 0, bytes);
      return;
    }
    while (bytes > 0 && fill_buffer()) {
      uint64_t count = std::min<uint64_t>(bytes, buffer_end() - position_);
      std::memcpy(out, buffer_.data() + (position_ - buffer_begin_), count);
      position_ += static_cast<int64_t>(count);
      out += count;
      bytes -= count;
    }
  }
  void skip(uint64_t bytes) {
    if (require(bytes)) position_ += static_cast<int64_t>(bytes);
  }
  template <typename T>
  T number() {
    T value{};
    read(&value, sizeof(T));
    return value;
  }
  std::string string(uint64_t max_bytes) {
    uint64_t bytes = string_length(max_bytes);
    std::string text(bytes, '\0');
    if (bytes > 0) read(text.data(), bytes);
    return ok() ? text : std::string();
  }
  void skip_string() { skip(string_length(kMaxStringBytes)); }

 private:
  bool require(uint64_t bytes) {
    if (ok() && bytes > bytes_left()) fail(format("truncated at byte {} of the header", file_.size_bytes()));
    return ok();
  }
  uint64_t string_length(uint64_t max_bytes) {
    auto bytes = number<uint64_t>();
    if (bytes > max_bytes) fail(format("a string of {} bytes at byte {}", bytes, position_));
    return require(bytes) ? bytes : 0;
  }
  int64_t buffer_end() const { return buffer_begin_ + static_cast<int64_t>(buffer_.size()); }
  bool fill_buffer() {
    if (position_ >= buffer_begin_ && position_ < buffer_end()) return true;
    constexpr int64_t kBufferBytes = int64_t{1} << 20;
    buffer_begin_ = position_;
    buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, file_.size_bytes() - position_)));
    Status read = file_.read_bytes(buffer_begin_, buffer_.data(), static_cast<int64_t>(buffer_.size()));
    if (!read.ok()) status_ = read;
    return read.ok();
  }

  const RandomAccessFile& file_;
  int64_t position_ = 0;
  int64_t buffer_begin_ = 0;
  std::vector<char> buffer_;
  Status status_;
};

// Bytes of one element in an array; of a string, its length field.
uint64_t least_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool: return 1;
    case ValueType::kU16:
    case ValueType::kI16: return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32: return 4;
    default: return 8;
  }
}

int64_t read_integer(HeaderReader& in, ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kBool: return in.number<uint8_t>();
    case ValueType::kI8: return in.number<int8_t>();
    case ValueType::kU16: return in.number<uint16_t>();
    case ValueType::kI16: return in.number<int16_t>();
    case ValueType::kU32: return in.number<uint32_t>();
    case ValueType::kI32: return in.number<int32_t>();
    default: return in.number<int64_t>();
  }
}

double read_float(HeaderReader& in, ValueType type) {
  return type == ValueType::kF32 ? static_cast<double>(in.number<float>()) : in.number<double>();
}

bool is_float(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }

template <typename T, typename ReadOne>
GgufValue read_elements(HeaderReader& in, uint64_t count, ReadOne read_one) {
  std::vector<T> values;
  for (uint64_t i = 0; i < count && in.ok(); ++i) values.push_back(read_one());
  return values;
}

void skip_elements(HeaderReader& in, ValueType type, uint64_t count) {
  if (type != ValueType::kString) return in.skip(count * least_bytes(type));
  for (uint64_t i = 0; i < count && in.ok(); ++i) in.skip_string();
}

std::optional<GgufValue> read_array(HeaderReader& in, const std::string& key, bool keep) {
  auto type = static_cast<ValueType>(in.number<uint32_t>());
  auto count = in.number<uint64_t>();
  if (type > ValueType::kF64 || type == ValueType::kArray) {
    in.fail(format("key {}: array of type {}", key, static_cast<uint32_t>(type)));
  } else if (count > kMaxArrayElements || count * least_bytes(type) > in.bytes_left()) {
    in.fail(format("key {}: an array of {} elements with {} bytes left", key, count, in.bytes_left()));
  }
  if (!in.ok()) return std::nullopt;
  if (!keep) {
    skip_elements(in, type, count);
    return std::nullopt;
  }
  if (type == ValueType::kString)
    return read_elements<std::string>(in, count, [&] { return in.string(kMaxStringBytes); });
  if (is_float(type)) return read_elements<double>(in, count, [&] { return read_float(in, type); });
  return read_elements<int64_t>(in, count, [&] { return read_integer(in, type); });
}

// nullopt: an array that was skipped, or a failure.
std::optional<GgufValue> read_value(HeaderReader& in,
                                    const std::string& key,
                                    const GgufReadOptions& options) {
  auto type = static_cast<ValueType>(in.number<uint32_t>());
  if (type > ValueType::kF64) in.fail(format("key {}: unknown type {}", key, static_cast<uint32_t>(type)));
  if (!in.ok()) return std::nullopt;
  if (type == ValueType::kArray)
    return read_array(in, key, options.keep_tokenizer || !key.starts_with("tokenizer."));
  if (type == ValueType::kString) return in.string(kMaxStringBytes);
  if (type == ValueType::kBool) return in.number<uint8_t>() != 0;
  if (is_float(type)) return read_float(in, type);
  return read_integer(in, type);
}

void read_metadata(HeaderReader& in, uint64_t count, const GgufReadOptions& options, GgufMetadata& metadata) {
  std::set<std::string> keys;
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    std::string key = in.string(kMaxKeyBytes);
    if (in.ok() && !keys.insert(key).second) in.fail(format("key {} stands there twice", key));
    auto value = read_value(in, key, options);
    if (value && in.ok()) metadata.emplace(std::move(key), *std::move(value));
  }
}

std::optional<WeightScheme> scheme_of_type(uint32_t type) {
  for (auto scheme : {WeightScheme::kF32,
                      WeightScheme::kF16,
                      WeightScheme::kBF16,
                      WeightScheme::kQ8_0,
                      WeightScheme::kQ4_0,
                      WeightScheme::kQ4_1})
    if (gguf::type_number(scheme) == type) return scheme;
  return std::nullopt;
}

std::string type_name(uint32_t type) {
  static constexpr std::string_view kNames[] = {
      "F32",   "F16",    "Q4_0", "Q4_1", "Q4_2", "Q4_3",    "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
      "Q3_K",  "Q4_K",   "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
      "IQ2_S", "IQ4_XS", "I8",   "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16"};
  return type < std::size(kNames) ? std::string(kNames[type]) : format("type {}", type);
}

// Bytes of a tensor from its shape; kDataLoss where they do not fit any file or do not fill whole blocks.
Result<int64_t> tensor_bytes(const GgufTensor& tensor, const std::string& path) {
  constexpr int64_t kMaxValues = int64_t{1} << 42;
  int64_t values = 1;
  for (int64_t dim : tensor.dims)
    if (dim <= 0 || __builtin_mul_overflow(values, dim, &values) || values > kMaxValues)
      return data_loss(format("{}: tensor {}: impossible shape", path, tensor.name));
  SchemeTraits traits = scheme_traits(tensor.scheme);
  if (tensor.dims.empty() || tensor.dims[0] % traits.block_values != 0)
    return data_loss(format(
        "{}: tensor {}: rows do not fill blocks of {} values", path, tensor.name, traits.block_values));
  return values / traits.block_values * traits.block_bytes;
}

Result<GgufTensor> read_tensor(HeaderReader& in, const std::string& path) {
  GgufTensor tensor;
  tensor.name = in.string(kMaxKeyBytes);
  auto rank = in.number<uint32_t>();
  if (rank > 4) in.fail(format("tensor {}: {} dimensions", tensor.name, rank));
  for (uint32_t axis = 0; axis < rank && in.ok(); ++axis) tensor.dims.push_back(in.number<int64_t>());
  auto type = in.number<uint32_t>();
  auto offset = in.number<uint64_t>();
  RETURN_IF_ERROR(in.status());
  auto scheme = scheme_of_type(type);
  if (!scheme)
    return unimplemented(format("{}: tensor {} is {}; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are served",
                                path,
                                tensor.name,
                                type_name(type)));
  tensor.scheme = *scheme;
  if (offset > (uint64_t{1} << 62))
    return data_loss(format("{}: tensor {}: offset {} is outside the file", path, tensor.name, offset));
  tensor.offset = static_cast<int64_t>(offset);
  ASSIGN_OR_RETURN(tensor.bytes, tensor_bytes(tensor, path));
  return tensor;
}

Result<int64_t> alignment_of(const GgufMetadata& metadata, const std::string& path) {
  auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return gguf::kDefaultAlignment;
  const auto* value = std::get_if<int64_t>(&found->second);
  if (value == nullptr || *value < 1 || *value > (1 << 20) || (*value & (*value - 1)) != 0)
    return data_loss(format("{}: general.alignment is no power of two up to 1 MiB", path));
  return *value;
}

// Turns offsets into the data section to offsets into the file and checks that each tensor lies inside,
// alone.
Status place_tensors(std::vector<GgufTensor>& tensors,
                     int64_t header_end,
                     int64_t alignment,
                     const RandomAccessFile& file) {
  int64_t data_begin = (header_end + alignment - 1) / alignment * alignment;
  std::vector<const GgufTensor*> by_offset;
  for (GgufTensor& tensor : tensors) {
    if (tensor.offset % alignment != 0)
      return data_loss(format("{}: tensor {}: offset {} is no multiple of the alignment {}",
                              file.path(),
                              tensor.name,
                              tensor.offset,
                              alignment));
    tensor.offset += data_begin;
    if (tensor.offset > file.size_bytes() || tensor.bytes > file.size_bytes() - tensor.offset)
      return data_loss(format("{}: tensor {}: {} bytes from byte {} on, the file has {} (truncated?)",
                              file.path(),
                              tensor.name,
                              tensor.bytes,
                              tensor.offset,
                              file.size_bytes()));
    by_offset.push_back(&tensor);
  }
  std::sort(
      by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i)
    if (by_offset[i]->offset < by_offset[i - 1]->offset + by_offset[i - 1]->bytes)
      return data_loss(
          format("{}: tensors {} and {} overlap", file.path(), by_offset[i - 1]->name, by_offset[i]->name));
  return ok_status();
}

struct Counts {
  uint64_t tensors = 0;
  uint64_t keys = 0;
};

Result<Counts> read_preamble(HeaderReader& in, const std::string& path) {
  char magic[4];
  in.read(magic, sizeof(magic));
  if (in.ok() && std::memcmp(magic, "GGUF", 4) != 0) in.fail("not a GGUF file");
  auto version = in.number<uint32_t>();
  RETURN_IF_ERROR(in.status());
  if (version != 3) return unimplemented(format("{}: GGUF version {}; version 3 is served", path, version));
  Counts counts{.tensors = in.number<uint64_t>(), .keys = in.number<uint64_t>()};
  constexpr uint64_t kLeastTensorBytes = 24;
  constexpr uint64_t kLeastKeyBytes = 13;
  if (counts.tensors > kMaxTensors || counts.tensors * kLeastTensorBytes > in.bytes_left())
    in.fail(format("{} tensors in a file of this size: is it cut short?", counts.tensors));
  if (counts.keys > kMaxTensors || counts.keys * kLeastKeyBytes > in.bytes_left())
    in.fail(format("{} metadata keys in a file of this size: is it cut short?", counts.keys));
  RETURN_IF_ERROR(in.status());
  return counts;
}

}  // namespace

uint32_t gguf::type_number(WeightScheme scheme) {
  switch (scheme) {
    case WeightScheme::kF32: return 0;
    case WeightScheme::kF16: return 1;
    case WeightScheme::kQ4_0: return 2;
    case WeightScheme::kQ4_1: return 3;
    case WeightScheme::kQ8_0: return 8;
    case WeightScheme::kBF16: return 30;
    case WeightScheme::kF8E4M3: break;  // the format has no such type
  }
  return ~0u;
}

Result<GgufFile> read_gguf(const RandomAccessFile& file, const GgufReadOptions& options) {
  HeaderReader in(file);
  GgufFile gguf;
  ASSIGN_OR_RETURN(Counts counts, read_preamble(in, file.path()));
  read_metadata(in, counts.keys, options, gguf.metadata);
  RETURN_IF_ERROR(in.status());
  if (options.metadata_only) return gguf;
  ASSIGN_OR_RETURN(int64_t alignment, alignment_of(gguf.metadata, file.path()));
  std::set<std::string> names;
  for (uint64_t i = 0; i < counts.tensors; ++i) {
    ASSIGN_OR_RETURN(auto tensor, read_tensor(in, file.path()));
    if (!names.insert(tensor.name).second)
      return data_loss(format("{}: tensor {} stands there twice", file.path(), tensor.name));
    gguf.tensors.push_back(std::move(tensor));
  }
  RETURN_IF_ERROR(place_tensors(gguf.tensors, in.position(), alignment, file));
  return gguf;
}

}  // namespace llm_dist::checkpoint
