#include "src/checkpoint/convert.h"

#include <filesystem>
#include <optional>
#include <set>
#include <vector>

#include "src/checkpoint/f8_scales.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/hf_tokenizer.h"
#include "src/checkpoint/quantize.h"
#include "src/checkpoint/safetensors.h"

namespace llm_dist::checkpoint {
namespace {

Status write_text(const std::string& path, const std::string& text) {
  FileWriter writer(path);
  writer.write(text.data(), static_cast<int64_t>(text.size()));
  return writer.finish();
}

// `scales`: of an f8_e4m3 tensor.
TensorToWrite converted(const Checkpoint& checkpoint,
                        const TensorInfo& tensor,
                        const std::optional<F8Scales>& scales,
                        DType dtype) {
  bool vector = tensor.cols == 1;
  TensorToWrite out{.name = tensor.name, .dtype = dtype, .shape = {tensor.rows}, .fill = {}};
  if (!vector) out.shape.push_back(tensor.cols);
  out.fill = [&checkpoint, &tensor, scales, dtype](
                 int64_t row, int64_t count, std::byte* destination) -> Status {
    std::vector<std::byte> stored(static_cast<size_t>(count * tensor.row_bytes()));
    std::vector<float> values(static_cast<size_t>(tensor.cols));
    SliceRequest request{.name = tensor.name,
                         .row_begin = row,
                         .row_count = count,
                         .col_count = tensor.cols,
                         .destination = stored.data()};
    RETURN_IF_ERROR(
        checkpoint.read(std::span(&request, 1), {.threads = 1, .progress = {}, .stop = {}}).status());
    for (int64_t i = 0; i < count; ++i) {
      dequantize_row(tensor.scheme, stored.data() + i * tensor.row_bytes(), values.data(), tensor.cols);
      if (scales) scales->apply(row + i, 0, values.data(), tensor.cols);
      if (dtype == DType::kF16)
        RETURN_IF_ERROR(check_fits_f16(tensor.name, row + i, values.data(), tensor.cols));
      quantize_row(
          scheme_of(dtype), values.data(), destination + i * tensor.cols * dtype_bytes(dtype), tensor.cols);
    }
    return ok_status();
  };
  return out;
}

// Files of another model would stay beside the new one's, and an index among them would be read in its place.
// What a conversion that was interrupted has left is no model yet.
Status check_holds_no_model(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    const bool weights = name.ends_with(".safetensors") && name != "model.safetensors";
    if (name == "config.json" || name.ends_with(".safetensors.index.json") || weights)
      return failed_precondition(format(
          "{} holds a model already ({}): name another directory, or empty this one", directory, name));
  }
  return error ? failed_precondition(format("{}: {}", directory, error.message())) : ok_status();
}

}  // namespace

Status convert_to_hf(const Checkpoint& checkpoint,
                     const std::string& tokenizer_json,
                     const std::string& directory,
                     DType dtype) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return failed_precondition(format("{}: {}", directory, error.message()));
  RETURN_IF_ERROR(check_holds_no_model(directory));
  ModelConfig config = checkpoint.config();
  config.torch_dtype = dtype;
  ASSIGN_OR_RETURN(const HfConfigTexts texts, write_hf_config(config));
  std::vector<TensorToWrite> tensors;
  std::set<const TensorInfo*> scale_tensors;
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (tensor.scheme == WeightScheme::kF8E4M3) scale_tensors.insert(checkpoint.scales_of(tensor));
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (scale_tensors.count(&tensor) > 0) continue;
    std::optional<F8Scales> scales;
    if (tensor.scheme == WeightScheme::kF8E4M3) {
      ASSIGN_OR_RETURN(scales, F8Scales::read(checkpoint, tensor));
    }
    tensors.push_back(converted(checkpoint, tensor, scales, dtype));
  }
  RETURN_IF_ERROR(write_safetensors(directory + "/model.safetensors", tensors, {{"format", "pt"}}));
  if (!tokenizer_json.empty()) {
    RETURN_IF_ERROR(write_text(directory + "/tokenizer.json", tokenizer_json));
    RETURN_IF_ERROR(
        write_text(directory + "/tokenizer_config.json", tokenizer_config_json(checkpoint.tokenizer())));
  }
  RETURN_IF_ERROR(write_text(directory + "/generation_config.json", texts.generation_config_json));
  return write_text(directory + "/config.json", texts.config_json);
}

}  // namespace llm_dist::checkpoint
