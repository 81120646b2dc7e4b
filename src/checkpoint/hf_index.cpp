#include "src/checkpoint/hf_index.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "src/base/json_text.h"
#include "src/base/small_file.h"
#include "src/checkpoint/file.h"

namespace llm_dist::checkpoint {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMaxIndexBytes = int64_t{64} << 20;

// A shard stands beside its index: a name with a path in it would read files elsewhere.
bool is_file_name(const Json& name) {
  constexpr std::string_view kForbidden("/\0", 2);
  return name.is_string() &&
         name.get_ref<const std::string&>().find_first_of(kForbidden) == std::string::npos;
}

Result<HfFiles> read_index(const std::string& directory, const std::string& path, const std::string& text) {
  if (json_is_too_deep(text))
    return data_loss(format("{}: nested deeper than {} levels", path, kMaxJsonDepth));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return data_loss(format("{}: no weight_map object", path));
  HfFiles files;
  std::set<std::string> names;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    if (!is_file_name(file)) return data_loss(format("{}: tensor {}: no plain file name", path, tensor));
    files.weight_map.emplace(tensor, file.get<std::string>());
    names.insert(file.get<std::string>());
  }
  if (names.empty()) return data_loss(format("{}: weight_map is empty", path));
  for (const std::string& name : names)
    if (std::error_code error; !fs::is_regular_file(fs::path(directory) / name, error))
      return not_found(format("{}: names the shard {}, which is missing", path, name));
  files.names.assign(names.begin(), names.end());
  return files;
}

}  // namespace

Result<HfFiles> list_hf_files(const std::string& directory) {
  const std::string index_path = directory + "/model.safetensors.index.json";
  auto text = read_small_file(index_path, kMaxIndexBytes);
  if (text.ok()) return read_index(directory, index_path, *text);
  if (text.status().code() != StatusCode::kNotFound) return text.status();
  HfFiles files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".safetensors") files.names.push_back(entry->path().filename());
  if (std::find(files.names.begin(), files.names.end(), "model.safetensors") != files.names.end())
    files.names = {"model.safetensors"};
  if (files.names.empty()) return not_found(format("{}: no *.safetensors file", directory));
  std::sort(files.names.begin(), files.names.end());
  return files;
}

}  // namespace llm_dist::checkpoint
