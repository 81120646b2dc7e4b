#include "src/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;

struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<uint64_t>> shape;
  std::optional<std::vector<uint64_t>> offsets;
};

// Reads exactly the header's grammar. A document tree would hide duplicate names and let a hostile header
// take many times its own size.
class HeaderSax {
 public:
  using number_integer_t = Json::number_integer_t;
  using number_unsigned_t = Json::number_unsigned_t;
  using number_float_t = Json::number_float_t;
  using string_t = Json::string_t;
  using binary_t = Json::binary_t;

  std::vector<Entry> entries;
  std::string error;

  bool null() { return fail("a null"); }
  bool boolean(bool) { return fail("a boolean"); }
  bool number_integer(number_integer_t) { return fail("a negative number"); }
  bool number_float(number_float_t, const string_t&) { return fail("a fraction"); }
  bool binary(binary_t&) { return fail("binary"); }
  bool number_unsigned(number_unsigned_t value) {
    if (numbers_ == nullptr) return fail("a number");
    if (numbers_->size() >= 8) return fail("more than 8 numbers");
    numbers_->push_back(value);
    return true;
  }
  bool string(string_t& value) {
    if (depth_ != 2 || numbers_ != nullptr) return fail("a string");
    if (in_metadata_) return true;
    if (field_ != "dtype") return fail("a string");
    entries.back().dtype = value;
    return true;
  }
  bool start_object(size_t) {
    if (depth_ >= 2 || numbers_ != nullptr) return fail("an object");
    ++depth_;
    return true;
  }
  bool end_object() {
    --depth_;
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool key(string_t& value) {
    if (depth_ == 1) return tensor_key(value);
    field_ = value;
    if (in_metadata_) return true;
    const Entry& entry = entries.back();
    bool repeated = (field_ == "dtype" && entry.dtype) || (field_ == "shape" && entry.shape) ||
                    (field_ == "data_offsets" && entry.offsets);
    return repeated ? fail("a repeated field") : true;
  }
  bool start_array(size_t) {
    if (depth_ != 2 || in_metadata_ || numbers_ != nullptr) return fail("an array");
    Entry& entry = entries.back();
    if (field_ == "shape") numbers_ = &entry.shape.emplace();
    if (field_ == "data_offsets") numbers_ = &entry.offsets.emplace();
    return numbers_ != nullptr || fail("an array");
  }
  bool end_array() {
    numbers_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    error = format("not JSON at header byte {}", position);
    return false;
  }

 private:
  bool tensor_key(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    field_.clear();
    if (in_metadata_) return true;
    if (!names_.insert(name).second) {
      error = format("tensor {} stands there twice", name);
      return false;
    }
    entries.push_back({.name = name, .dtype = {}, .shape = {}, .offsets = {}});
    return true;
  }
  bool fail(std::string_view what) {
    error = format("{} where none belongs{}{}", what, entries.empty() ? "" : ", in ", last_name());
    return false;
  }
  std::string last_name() const { return entries.empty() ? std::string() : entries.back().name; }

  int depth_ = 0;
  bool in_metadata_ = false;
  std::string field_;
  std::vector<uint64_t>* numbers_ = nullptr;
  std::set<std::string> names_;
};

std::optional<WeightScheme> scheme_named(std::string_view dtype) {
  if (dtype == "F32") return WeightScheme::kF32;
  if (dtype == "F16") return WeightScheme::kF16;
  if (dtype == "BF16") return WeightScheme::kBF16;
  if (dtype == "F8_E4M3") return WeightScheme::kF8E4M3;
  return std::nullopt;
}

// Checks one entry against itself and the size of the data; offsets become those of the file.
Result<TensorInfo> to_tensor_info(const Entry& entry,
                                  int64_t data_begin,
                                  int64_t data_bytes,
                                  const std::string& path) {
  auto bad = [&](const std::string& why) {
    return data_loss(format("{}: tensor {}: {}", path, entry.name, why));
  };
  if (!entry.dtype || !entry.shape || !entry.offsets) return bad("dtype, shape or data_offsets is missing");
  auto scheme = scheme_named(*entry.dtype);
  if (!scheme)
    return unimplemented(
        format("{}: tensor {} is {}; F32, F16, BF16 and F8_E4M3 are served", path, entry.name, *entry.dtype));
  if (entry.shape->size() > 2)
    return unimplemented(
        format("{}: tensor {} has {} dimensions; 1 and 2 are served", path, entry.name, entry.shape->size()));
  constexpr uint64_t kMaxDim = uint64_t{1} << 40;
  uint64_t rows = entry.shape->empty() ? 1 : (*entry.shape)[0];
  uint64_t cols = entry.shape->size() < 2 ? 1 : (*entry.shape)[1];
  uint64_t bytes = 0;
  if (rows > kMaxDim || cols > kMaxDim || __builtin_mul_overflow(rows, cols, &bytes) || bytes > kMaxDim)
    return bad("its shape is too large");
  bytes *= static_cast<uint64_t>(scheme_traits(*scheme).block_bytes);
  if (entry.offsets->size() != 2) return bad("data_offsets is not a pair");
  uint64_t begin = (*entry.offsets)[0];
  uint64_t end = (*entry.offsets)[1];
  if (begin > end || end > static_cast<uint64_t>(data_bytes))
    return bad(format("data_offsets [{}, {}] outside the {} bytes of data", begin, end, data_bytes));
  if (end - begin != bytes)
    return bad(format("{} of shape [{}, {}] is {} bytes, data_offsets hold {}",
                      *entry.dtype,
                      rows,
                      cols,
                      bytes,
                      end - begin));
  return TensorInfo{.name = entry.name,
                    .scheme = *scheme,
                    .rows = static_cast<int64_t>(rows),
                    .cols = static_cast<int64_t>(cols),
                    .offset = data_begin + static_cast<int64_t>(begin)};
}

// The format allows neither overlaps nor holes nor bytes behind the last tensor.
Status check_layout(const std::vector<TensorInfo>& tensors,
                    int64_t data_begin,
                    const RandomAccessFile& file) {
  std::vector<const TensorInfo*> by_offset;
  by_offset.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->offset, a->bytes()) < std::pair(b->offset, b->bytes());
  });
  int64_t end = data_begin;
  for (const TensorInfo* tensor : by_offset) {
    if (tensor->offset != end)
      return data_loss(format("{}: tensor {} {} (begins at file byte {}, the one before ends at {})",
                              file.path(),
                              tensor->name,
                              tensor->offset < end ? "overlaps another" : "leaves a hole before it",
                              tensor->offset,
                              end));
    end = tensor->offset + tensor->bytes();
  }
  if (end != file.size_bytes())
    return data_loss(format("{}: {} bytes behind the last tensor", file.path(), file.size_bytes() - end));
  return ok_status();
}

std::string_view safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "F32";
    case DType::kF16: return "F16";
    case DType::kBF16: return "BF16";
    case DType::kI32: return "I32";
    case DType::kI64: return "I64";
    case DType::kU8: return "U8";
    case DType::kF8E4M3: return "F8_E4M3";
  }
  return "?";
}

int64_t rows_of(const TensorToWrite& tensor) { return tensor.shape.empty() ? 1 : tensor.shape[0]; }

int64_t bytes_of_row(const TensorToWrite& tensor) {
  int64_t bytes = dtype_bytes(tensor.dtype);
  for (size_t axis = 1; axis < tensor.shape.size(); ++axis) bytes *= tensor.shape[axis];
  return bytes;
}

}  // namespace

Result<std::vector<TensorInfo>> read_safetensors_header(const RandomAccessFile& file, int32_t file_index) {
  uint64_t header_bytes = 0;
  constexpr int64_t kLengthBytes = sizeof(header_bytes);
  if (file.size_bytes() < kLengthBytes)
    return data_loss(
        format("{}: {} bytes are too few for a safetensors file", file.path(), file.size_bytes()));
  RETURN_IF_ERROR(file.read_bytes(0, &header_bytes, kLengthBytes));
  if (header_bytes > kMaxSafetensorsHeaderBytes)
    return data_loss(format("{}: a header of {} bytes; the format allows {}",
                            file.path(),
                            header_bytes,
                            kMaxSafetensorsHeaderBytes));
  int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  if (data_begin > file.size_bytes())
    return data_loss(format(
        "{}: truncated, the header alone ends at byte {} of {}", file.path(), data_begin, file.size_bytes()));
  std::string header(header_bytes, '\0');
  RETURN_IF_ERROR(file.read_bytes(kLengthBytes, header.data(), static_cast<int64_t>(header_bytes)));

  HeaderSax sax;
  if (header.empty() || header[0] != '{')
    return data_loss(format("{}: the header is no JSON object", file.path()));
  if (!Json::sax_parse(header, &sax)) return data_loss(format("{}: header: {}", file.path(), sax.error));
  std::vector<TensorInfo> tensors;
  tensors.reserve(sax.entries.size());
  for (const Entry& entry : sax.entries) {
    ASSIGN_OR_RETURN(auto info,
                     to_tensor_info(entry, data_begin, file.size_bytes() - data_begin, file.path()));
    info.file = file_index;
    tensors.push_back(std::move(info));
  }
  RETURN_IF_ERROR(check_layout(tensors, data_begin, file));
  return tensors;
}

TensorToWrite tensor_in_memory(std::string name, DType dtype, std::vector<int64_t> shape, const void* data) {
  TensorToWrite tensor{.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .fill = {}};
  tensor.fill = [data, bytes = bytes_of_row(tensor)](int64_t row, int64_t count, std::byte* destination) {
    if (count * bytes == 0) return ok_status();  // either pointer may be null
    std::memcpy(
        destination, static_cast<const std::byte*>(data) + row * bytes, static_cast<size_t>(count * bytes));
    return ok_status();
  };
  return tensor;
}

Status write_safetensors(const std::string& path,
                         std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const TensorToWrite& tensor : tensors) {
    int64_t end = offset + rows_of(tensor) * bytes_of_row(tensor);
    header[tensor.name] = {
        {"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data starts aligned
  auto header_bytes = static_cast<uint64_t>(text.size());
  FileWriter writer(path);
  writer.write(&header_bytes, sizeof(header_bytes));
  writer.write(text.data(), static_cast<int64_t>(text.size()));

  constexpr int64_t kChunkBytes = int64_t{4} << 20;
  std::vector<std::byte> chunk;
  for (const TensorToWrite& tensor : tensors) {
    int64_t row_bytes = bytes_of_row(tensor);
    int64_t rows_a_chunk = std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, row_bytes));
    for (int64_t row = 0; row < rows_of(tensor); row += rows_a_chunk) {
      int64_t count = std::min(rows_a_chunk, rows_of(tensor) - row);
      chunk.resize(static_cast<size_t>(count * row_bytes));
      RETURN_IF_ERROR(tensor.fill(row, count, chunk.data()));
      writer.write(chunk.data(), count * row_bytes);
    }
  }
  return writer.finish();
}

}  // namespace llm_dist::checkpoint
