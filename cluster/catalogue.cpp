#include "cluster/catalogue.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/base/format.h"
#include "src/base/log.h"
#include "src/base/nearest.h"
#include "src/base/small_file.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;

constexpr int kMaxRanks = 1024;
constexpr int64_t kMaxLimit = 1'000'000;

// By their first names, so that they can be compared with what a job says.
Result<std::vector<std::string>> read_arguments(const json& words, const FlagNames& names) {
  std::vector<std::string> arguments;
  for (const std::string& typed : words.get<std::vector<std::string>>()) {
    arguments.push_back(names.with_first_name(typed));
    Status status = refuse_own_flag(arguments.back());
    if (!status.ok()) return status.with_context(format("'arguments': '{}'", typed));
  }
  return arguments;
}

Result<CatalogueModel> read_model(const json& value,
                                  const std::filesystem::path& folder,
                                  const FlagNames& names) {
  constexpr std::string_view kFields[] = {"path", "arguments", "max_ranks"};
  if (!value.is_object()) return invalid_argument("must be an object");
  CatalogueModel model;
  for (const auto& [name, field] : value.items()) {
    bool right = true;
    if (name == "path") {
      right = field.is_string() && !field.get_ref<const std::string&>().empty();
      if (right) model.path = (folder / field.get<std::string>()).string();
    } else if (name == "arguments") {
      right = field.is_array() &&
              std::all_of(field.begin(), field.end(), [](const json& a) { return a.is_string(); });
      if (right) {
        ASSIGN_OR_RETURN(model.arguments, read_arguments(field, names));
      }
    } else if (name == "max_ranks") {
      right = field.is_number_integer() && field.get<int64_t>() >= 1 && field.get<int64_t>() <= kMaxRanks;
      if (right) model.max_ranks = field.get<int>();
    } else {
      return invalid_argument(
          format("unknown field '{}': did you mean '{}'?", name, nearest_word(name, kFields)));
    }
    if (!right) return invalid_argument(format("'{}' has the wrong type or value", name));
  }
  if (model.path.empty()) return invalid_argument("'path' is missing");
  return model;
}

Result<ProjectQuota> read_quota(const json& value) {
  ProjectQuota quota;
  const std::pair<std::string_view, int*> fields[] = {{"max_running_jobs", &quota.max_running_jobs},
                                                      {"max_queued_jobs", &quota.max_queued_jobs},
                                                      {"max_slots", &quota.max_slots}};
  if (!value.is_object()) return invalid_argument("must be an object");
  for (const auto& [name, limit] : value.items()) {
    auto field = std::find_if(
        std::begin(fields), std::end(fields), [&](const auto& each) { return each.first == name; });
    if (field == std::end(fields)) {
      constexpr std::string_view kNames[] = {"max_running_jobs", "max_queued_jobs", "max_slots"};
      return invalid_argument(
          format("unknown field '{}': did you mean '{}'?", name, nearest_word(name, kNames)));
    }
    bool right = limit.is_number_integer() && limit.get<int64_t>() >= 1 && limit.get<int64_t>() <= kMaxLimit;
    if (!right) return invalid_argument(format("'{}' must be from 1 to {}", name, kMaxLimit));
    *field->second = limit.get<int>();
  }
  return quota;
}

Result<json> read_root(const std::string& file) {
  Result<std::string> read = read_small_file(file);
  if (!read.ok()) return read.status().with_context("cannot read the catalogue");
  json root = json::parse(*read, nullptr, false);
  if (!root.is_object() || !root.contains("models") || !root["models"].is_object()) {
    return invalid_argument(format("{}: must be {\"models\": {NAME: {\"path\": PATH}}}", file));
  }
  constexpr std::string_view kFields[] = {"models", "projects"};
  for (const auto& [name, value] : root.items()) {
    if (name == "models" || (name == "projects" && value.is_object())) continue;
    if (name == "projects") return invalid_argument(format("{}: 'projects' must be an object", file));
    return invalid_argument(
        format("{}: unknown field '{}': did you mean '{}'?", file, name, nearest_word(name, kFields)));
  }
  return root;
}

// No error: one model that has moved is no reason to leave the jobs of the others without a coordinator, and
// it may be back before a job wants it.
void warn_of_missing(const std::string& file, const std::map<std::string, CatalogueModel>& models) {
  for (const auto& [name, model] : models) {
    if (std::error_code error; std::filesystem::exists(model.path, error)) continue;
    log_warning("{}: model '{}': {} is not there, its jobs will be refused", file, name, model.path);
  }
}

}  // namespace

Result<Catalogue> Catalogue::read(const std::string& file, const FlagNames& names) {
  ASSIGN_OR_RETURN(json root, read_root(file));
  std::filesystem::path folder = std::filesystem::absolute(file).parent_path();
  std::map<std::string, CatalogueModel> models;
  for (const auto& [name, value] : root["models"].items()) {
    Result<CatalogueModel> model = read_model(value, folder, names);
    if (!model.ok()) return model.status().with_context(format("{}: model '{}'", file, name));
    models[name] = std::move(model).value();
  }
  if (models.empty()) return invalid_argument(format("{} names no model", file));
  std::map<std::string, ProjectQuota> quotas;
  const json projects = root.value("projects", json::object());
  for (const auto& [name, value] : projects.items()) {
    Result<ProjectQuota> quota = read_quota(value);
    if (!quota.ok()) return quota.status().with_context(format("{}: project '{}'", file, name));
    quotas[name] = quota.value();
  }
  warn_of_missing(file, models);
  return Catalogue(std::move(models), std::move(quotas));
}

Catalogue& Catalogue::operator=(const Catalogue& other) {
  if (this == &other) return *this;
  std::shared_ptr<const Content> next = other.content();
  std::lock_guard lock(mutex_);
  content_.swap(next);
  return *this;
}

std::shared_ptr<const Catalogue::Content> Catalogue::content() const {
  std::lock_guard lock(mutex_);
  return content_;
}

ProjectQuota Catalogue::quota(const std::string& project) const {
  std::shared_ptr<const Content> now = content();
  auto found = now->quotas.find(project);
  if (found == now->quotas.end()) found = now->quotas.find("*");
  return found == now->quotas.end() ? ProjectQuota() : found->second;
}

Result<CatalogueModel> Catalogue::find(const std::string& name) const {
  std::shared_ptr<const Content> now = content();
  auto found = now->models.find(name);
  if (found != now->models.end()) return found->second;
  std::string known;
  for (const auto& [each, model] : now->models) known += (known.empty() ? "" : ", ") + each;
  return not_found(format("no model '{}' in the catalogue; there are: {}", name, known));
}

}  // namespace llm_dist::cluster
