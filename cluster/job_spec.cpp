#include "cluster/job_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "src/base/format.h"
#include "src/base/nearest.h"
#include "src/http/digest.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;

constexpr int64_t kMicroseconds = 1'000'000;
constexpr int64_t kMaxSeconds = 366LL * 24 * 3600;
constexpr unsigned kServe = 1;
constexpr unsigned kBatch = 2;
constexpr unsigned kBench = 4;
constexpr unsigned kAll = kServe | kBatch | kBench;

struct Field {
  std::string_view name;
  unsigned kinds;  // of jobs that have it
  bool is_text;
  int64_t low = 0;  // of a number, or of a text's length
  int64_t high = 0;
  bool in_spec = true;
};

// Every field of POST /v1/jobs.
constexpr Field kFields[] = {
    {"type", kAll, true, 1, 32, false},
    {"project", kAll, true, 1, 64, false},
    {"priority", kAll, false, -100, 100, false},
    {"expires_after_seconds", kAll, false, 1, kMaxSeconds, false},
    {"model", kAll, true, 1, 256},
    {"tp", kAll, false, 1, 1024},
    {"pp", kAll, false, 1, 1024},
    {"max_model_len", kServe | kBatch, false, 1, 1 << 24},
    {"max_num_seqs", kServe | kBatch, false, 1, 1 << 16},
    {"bench", kBench, true, 1, 16},
    {"batch", kBench, true, 1, 64},
    {"input_len", kBench, false, 1, 1 << 20},
    {"output_len", kBench, false, 1, 1 << 20},
    {"input_file_id", kBatch, true, 1, 64},
    {"endpoint", kBatch, true, 1, 64},
    {"replicas", kBatch, false, 1, 64},
};

unsigned kind_bit(JobKind kind) {
  return kind == JobKind::kServe ? kServe : kind == JobKind::kBatchInference ? kBatch : kBench;
}

const Field* find_field(std::string_view name) {
  auto found =
      std::find_if(std::begin(kFields), std::end(kFields), [&](const Field& f) { return f.name == name; });
  return found == std::end(kFields) ? nullptr : found;
}

Status unknown_field(const std::string& name) {
  std::vector<std::string_view> names;
  for (const Field& field : kFields) names.push_back(field.name);
  return invalid_argument(format("unknown field '{}': did you mean '{}'?", name, nearest_word(name, names)));
}

Status check_value(const Field& field, const json& value) {
  if (field.is_text) {
    if (!value.is_string()) return invalid_argument(format("'{}' must be a string", field.name));
    auto size = static_cast<int64_t>(value.get_ref<const std::string&>().size());
    if (size >= field.low && size <= field.high) return ok_status();
    return invalid_argument(format("'{}' must have {} to {} bytes", field.name, field.low, field.high));
  }
  if (!value.is_number_integer()) return invalid_argument(format("'{}' must be an integer", field.name));
  // A number beyond int64 would wrap into the range.
  bool fits = !value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(field.high);
  if (fits && value.get<int64_t>() >= field.low && value.get<int64_t>() <= field.high) return ok_status();
  return invalid_argument(format("'{}' must be from {} to {}", field.name, field.low, field.high));
}

Status check_one_of(const json& body, const char* field, std::initializer_list<std::string_view> allowed) {
  std::string value = body.value(field, "");
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return ok_status();
  std::string known;
  for (std::string_view each : allowed) known += (known.empty() ? "" : ", ") + std::string(each);
  return invalid_argument(format("'{}' must be one of: {}", field, known));
}

// "1,8,32"
bool is_number_list(const std::string& text) {
  bool digit_before = false;
  for (char c : text) {
    if (c == ',' && !digit_before) return false;
    if (c != ',' && (c < '0' || c > '9')) return false;
    digit_before = c != ',';
  }
  return digit_before;
}

Status check_kind(JobKind kind, const json& body, const Catalogue& catalogue, std::string& param) {
  param = "model";
  if (!body.contains("model")) return invalid_argument("'model' is missing");
  ASSIGN_OR_RETURN(CatalogueModel model, catalogue.find(body["model"].get<std::string>()));
  param = "tp";
  int64_t ranks = body.value("tp", int64_t{1}) * body.value("pp", int64_t{1});
  if (ranks > model.max_ranks) {
    return invalid_argument(format("tp × pp = {} ranks, and this model may have {}", ranks, model.max_ranks));
  }
  if (kind == JobKind::kBench) {
    param = "bench";
    RETURN_IF_ERROR(check_one_of(body, "bench", {"latency", "throughput"}));
    param = "batch";
    if (body.contains("batch") && body["bench"] != "latency") {
      return invalid_argument("'batch' belongs to bench latency");
    }
    if (!is_number_list(body.value("batch", "1")))
      return invalid_argument("'batch' must be numbers: \"1,8\"");
  }
  param.clear();
  return ok_status();
}

Status check_fields(const json& body, JobKind kind, std::string& param) {
  for (const auto& [name, value] : body.items()) {
    param = name;
    const Field* field = find_field(name);
    if (field == nullptr) return unknown_field(name);
    if ((field->kinds & kind_bit(kind)) == 0) {
      return invalid_argument(format("a job of type {} has no field '{}'", to_string(kind), name));
    }
    RETURN_IF_ERROR(check_value(*field, value));
  }
  return ok_status();
}

}  // namespace

Result<SubmitJob> parse_job_request(const std::string& text,
                                    const Catalogue& catalogue,
                                    int64_t now_us,
                                    std::string& param) {
  json body = json::parse(text, nullptr, false);
  if (!body.is_object()) return invalid_argument("the body must be a JSON object");
  param = "type";
  if (!body.contains("type") || !body["type"].is_string()) {
    return invalid_argument("'type' must be one of: serve, batch_inference, bench");
  }
  ASSIGN_OR_RETURN(JobKind kind, parse_job_kind(body["type"].get<std::string>()));
  RETURN_IF_ERROR(check_fields(body, kind, param));
  RETURN_IF_ERROR(check_kind(kind, body, catalogue, param));
  json spec = json::object();
  for (const Field& field : kFields) {
    if (field.in_spec && body.contains(field.name))
      spec[std::string(field.name)] = body[std::string(field.name)];
  }
  SubmitJob submit{.project = body.value("project", "default"),
                   .kind = kind,
                   .spec = spec.dump(),
                   .priority = body.value("priority", 0)};
  if (body.contains("expires_after_seconds")) {
    submit.expires_us = now_us + body["expires_after_seconds"].get<int64_t>() * kMicroseconds;
  }
  submit.idempotency.body_hash = request_hash("POST /v1/jobs", text);
  return submit;
}

// Objects are dumped with sorted keys.
std::string request_hash(std::string_view route, const std::string& body) {
  return http::sha256_hex(format("{}\n{}", route, json::parse(body, nullptr, false).dump()));
}

std::string asked_project(const std::string& text) {
  json body = json::parse(text, nullptr, false);
  if (!body.is_object() || !body.contains("project") || !body["project"].is_string()) return "";
  return body["project"].get<std::string>();
}

std::vector<std::string_view> job_fields(JobKind kind) {
  std::vector<std::string_view> names;
  for (const Field& field : kFields) {
    if ((field.kinds & kind_bit(kind)) != 0) names.push_back(field.name);
  }
  return names;
}

std::string replica_spec(const std::string& batch_spec) {
  json batch = json::parse(batch_spec, nullptr, false);
  json spec = json::object();
  for (const Field& field : kFields) {
    if (field.in_spec && (field.kinds & kServe) != 0 && batch.contains(field.name)) {
      spec[std::string(field.name)] = batch[std::string(field.name)];
    }
  }
  return spec.dump();
}

JobSpec read_job_spec(const std::string& text) {
  json spec = json::parse(text, nullptr, false);
  if (!spec.is_object()) return {};
  return {.model = spec.value("model", ""),
          .tp = spec.value("tp", 1),
          .pp = spec.value("pp", 1),
          .max_model_len = spec.value("max_model_len", 0),
          .max_num_seqs = spec.value("max_num_seqs", 0),
          .bench = spec.value("bench", ""),
          .batch = spec.value("batch", ""),
          .input_len = spec.value("input_len", 0),
          .output_len = spec.value("output_len", 0),
          .input_file_id = spec.value("input_file_id", ""),
          .endpoint = spec.value("endpoint", ""),
          .replicas = spec.value("replicas", 1)};
}

}  // namespace llm_dist::cluster
