#include "src/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "src/checkpoint/dummy.h"
#include "src/checkpoint/f8_scales.h"
#include "src/checkpoint/gguf_model.h"
#include "src/checkpoint/hf_config.h"
#include "src/checkpoint/hf_index.h"
#include "src/checkpoint/hf_tokenizer.h"
#include "src/checkpoint/quantize.h"
#include "src/checkpoint/safetensors.h"

namespace llm_dist::checkpoint {
namespace {

namespace fs = std::filesystem;

// What stands at a path.
struct Found {
  bool config_json = false;
  bool tokenizer_json = false;
  bool safetensors = false;
  std::vector<std::string> gguf_files;
};

Result<Found> look_at(const std::string& path) {
  std::error_code error;
  Found found;
  fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return not_found(format("{}: no such file or directory; a model is a path, nothing is downloaded", path));
  if (!fs::is_directory(status)) {
    found.gguf_files.push_back(path);
    return found;
  }
  fs::directory_iterator entry(path, error);
  for (fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    auto extension = entry->path().extension();
    if (entry->path().filename() == "config.json") found.config_json = true;
    if (entry->path().filename() == "tokenizer.json") found.tokenizer_json = true;
    if (extension == ".safetensors") found.safetensors = true;
    if (extension == ".gguf") found.gguf_files.push_back(entry->path());
  }
  if (error) return failed_precondition(format("{}: {}", path, error.message()));
  std::sort(found.gguf_files.begin(), found.gguf_files.end());
  return found;
}

Result<std::string> only_gguf(const Found& found, const std::string& path) {
  if (found.gguf_files.empty()) return not_found(format("{}: no .gguf file", path));
  if (found.gguf_files.size() == 1) return found.gguf_files.front();
  return invalid_argument(format("{}: {} .gguf files; name one, for example {}",
                                 path,
                                 found.gguf_files.size(),
                                 found.gguf_files.front()));
}

Result<LoadFormat> choose_format(const Found& found, const std::string& path) {
  if (found.safetensors && found.config_json) return LoadFormat::kSafetensors;
  if (!found.gguf_files.empty()) return LoadFormat::kGguf;
  if (found.config_json)
    return not_found(
        format("{}: config.json but no *.safetensors (for made-up weights: --load-format dummy)", path));
  return not_found(format("{}: neither config.json with *.safetensors nor a .gguf file", path));
}

// The factors that rope_freqs.weight holds, if the file has that tensor.
Status read_rope_factors(const GgufFile& gguf, const RandomAccessFile& file, ModelConfig& config) {
  for (const GgufTensor& tensor : gguf.tensors) {
    if (tensor.name != "rope_freqs.weight") continue;
    if (tensor.scheme != WeightScheme::kF32 || tensor.dims.size() != 1 ||
        tensor.dims[0] != config.head_dim / 2)
      return data_loss(
          format("{}: tensor rope_freqs.weight is not f32[{}]", file.path(), config.head_dim / 2));
    config.rope.frequency_factors.resize(static_cast<size_t>(tensor.dims[0]));
    RETURN_IF_ERROR(file.read_bytes(tensor.offset, config.rope.frequency_factors.data(), tensor.bytes));
  }
  return validate(config, file.path());
}

}  // namespace

std::string_view to_string(LoadFormat format) {
  switch (format) {
    case LoadFormat::kAuto: return "auto";
    case LoadFormat::kSafetensors: return "safetensors";
    case LoadFormat::kGguf: return "gguf";
    case LoadFormat::kDummy: return "dummy";
  }
  return "?";
}

Result<LoadFormat> parse_load_format(std::string_view name) {
  for (auto value : {LoadFormat::kAuto, LoadFormat::kSafetensors, LoadFormat::kGguf, LoadFormat::kDummy})
    if (to_string(value) == name) return value;
  return invalid_argument(format("load format {}; there are auto, safetensors, gguf and dummy", name));
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& path,
                                                     LoadFormat format,
                                                     const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const Found found, look_at(path));
  if (format == LoadFormat::kAuto) {
    ASSIGN_OR_RETURN(format, choose_format(found, path));
  }
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(path, format));
  if (format == LoadFormat::kSafetensors) {
    RETURN_IF_ERROR(checkpoint->open_safetensors(options));
  } else if (format == LoadFormat::kDummy && found.config_json) {
    RETURN_IF_ERROR(checkpoint->open_dummy_config(options));
  } else {
    ASSIGN_OR_RETURN(const std::string file, only_gguf(found, path));
    RETURN_IF_ERROR(checkpoint->open_gguf(file, options));
  }
  RETURN_IF_ERROR(checkpoint->check_tensors());
  RETURN_IF_ERROR(checkpoint->check_scales());
  return checkpoint;
}

Status Checkpoint::read_hf_files(const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(HfConfig hf, read_hf_config(path_));
  config_ = std::move(hf.config);
  config_names_tying_ = hf.names_tying;
  if (!options.load_tokenizer) return ok_status();
  ASSIGN_OR_RETURN(tokenizer_, read_hf_tokenizer(path_));
  for (int32_t id : tokenizer_.eos_ids) add_unique(config_.eos_ids, id);
  tokenizer_.eos_ids = config_.eos_ids;
  if (!tokenizer_.bos_id) tokenizer_.bos_id = config_.bos_id;
  return ok_status();
}

Status Checkpoint::open_safetensors(const CheckpointOptions& options) {
  RETURN_IF_ERROR(read_hf_files(options));
  ASSIGN_OR_RETURN(const HfFiles hf_files, list_hf_files(path_));
  for (const std::string& name : hf_files.names) {
    ASSIGN_OR_RETURN(auto file, options.open_file(path_ + "/" + name));
    ASSIGN_OR_RETURN(auto tensors, read_safetensors_header(*file, static_cast<int32_t>(files_.size())));
    files_.push_back(std::move(file));
    RETURN_IF_ERROR(add_tensors(std::move(tensors)));
  }
  for (const auto& [tensor, file] : hf_files.weight_map) {
    const TensorInfo* info = find(tensor);
    if (info == nullptr || file_of(*info) != path_ + "/" + file)
      return data_loss(
          format("{}/{}: tensor {} is missing, the index says it is there", path_, file, tensor));
  }
  if (!config_names_tying_) config_.tie_word_embeddings = find("lm_head.weight") == nullptr;
  return ok_status();
}

Status Checkpoint::open_gguf(const std::string& file_path, const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(auto file, options.open_file(file_path));
  ASSIGN_OR_RETURN(const GgufFile gguf, read_gguf(*file, {.keep_tokenizer = options.load_tokenizer}));
  ASSIGN_OR_RETURN(config_, config_from_gguf(gguf, file_path));
  RETURN_IF_ERROR(read_rope_factors(gguf, *file, config_));
  if (options.load_tokenizer) {
    ASSIGN_OR_RETURN(tokenizer_, tokenizer_from_gguf(gguf, file_path));
  }
  ASSIGN_OR_RETURN(auto tensors, tensors_from_gguf(gguf, config_, file_path));
  files_.push_back(std::move(file));
  return add_tensors(std::move(tensors));
}

Status Checkpoint::open_dummy_config(const CheckpointOptions& options) {
  RETURN_IF_ERROR(read_hf_files(options));
  ASSIGN_OR_RETURN(auto tensors,
                   expected_tensors(config_, options.dummy_scheme.value_or(scheme_of(config_.torch_dtype))));
  return add_tensors(std::move(tensors)).with_context(path_);
}

Status Checkpoint::add_tensors(std::vector<TensorInfo> tensors) {
  for (TensorInfo& tensor : tensors) {
    auto [other, added] = index_.emplace(tensor.name, tensors_.size());
    if (!added)
      return data_loss(format(
          "{}: tensor {} stands in {} too", file_of(tensor), tensor.name, file_of(tensors_[other->second])));
    tensors_.push_back(std::move(tensor));
  }
  return ok_status();
}

// Only families whose tensors are known here; others are checked by their model as it loads.
Status Checkpoint::check_tensors() const {
  // n tensors lack one of the first n layers: no more are listed, however many the configuration claims.
  ModelConfig config = config_;
  config.num_layers = std::min(config.num_layers, static_cast<int64_t>(tensors_.size()));
  auto expected = expected_tensors(config, WeightScheme::kF32);
  if (!expected.ok()) return ok_status();
  for (const TensorInfo& want : *expected) {
    const TensorInfo* have = find(want.name);
    if (have == nullptr) return not_found(format("{}: tensor {} is missing", path_, want.name));
    if (have->rows != want.rows || have->cols != want.cols)
      return data_loss(format("{}: tensor {} is [{}, {}], the configuration says [{}, {}]",
                              file_of(*have),
                              want.name,
                              have->rows,
                              have->cols,
                              want.rows,
                              want.cols));
  }
  return ok_status();
}

Status Checkpoint::check_scales() const {
  for (const TensorInfo& tensor : tensors_) {
    if (tensor.scheme != WeightScheme::kF8E4M3) continue;
    const TensorInfo* scales = scales_of(tensor);
    if (scales == nullptr)
      return not_found(format("{}: tensor {}_scale is missing", file_of(tensor), tensor.name));
    RETURN_IF_ERROR(check_f8_scales(tensor, *scales).with_context(file_of(tensor)));
  }
  return ok_status();
}

const TensorInfo* Checkpoint::scales_of(const TensorInfo& tensor) const {
  const TensorInfo* scales = find(tensor.name + "_scale");
  return scales != nullptr ? scales : find(tensor.name + "_scale_inv");
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const std::string& Checkpoint::file_of(const TensorInfo& tensor) const {
  auto index = static_cast<size_t>(tensor.file);
  return index < files_.size() ? files_[index]->path() : path_;
}

Result<ReadStats> Checkpoint::read(std::span<const SliceRequest> requests, const ReadOptions& options) const {
  std::vector<ResolvedSlice> slices;
  slices.reserve(requests.size());
  for (const SliceRequest& request : requests) {
    const TensorInfo* tensor = find(request.name);
    if (tensor == nullptr) return not_found(format("{}: no tensor {}", path_, request.name));
    ASSIGN_OR_RETURN(auto slice, resolve(*tensor, request));
    slices.push_back(slice);
  }
  if (format_ == LoadFormat::kDummy) return fill_slices(slices, fill_dummy, options);
  return read_slices(slices, files_, options);
}

Result<TokenizerSpec> read_tokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const Found found, look_at(path));
  if (found.tokenizer_json) return read_hf_tokenizer(path);
  if (found.gguf_files.empty()) return not_found(format("{}: neither tokenizer.json nor a .gguf file", path));
  ASSIGN_OR_RETURN(const std::string file, only_gguf(found, path));
  ASSIGN_OR_RETURN(const auto opened, open_posix_file(file));
  ASSIGN_OR_RETURN(const GgufFile gguf, read_gguf(*opened, {.metadata_only = true}));
  return tokenizer_from_gguf(gguf, file);
}

}  // namespace llm_dist::checkpoint
