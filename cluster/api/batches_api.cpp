#include "cluster/api/batches_api.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cluster/api/api_reply.h"
#include "cluster/api/job_actions.h"
#include "cluster/api/quota_reply.h"
#include "cluster/api/request_fields.h"
#include "cluster/batch_input.h"
#include "cluster/job_spec.h"
#include "src/base/format.h"
#include "src/base/json_text.h"
#include "src/base/nearest.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::json;

constexpr const char* kRoute = "POST /v1/batches";
constexpr int kMaxPage = 100;
constexpr int kMaxEvents = 10'000;
constexpr int64_t kMicroseconds = 1'000'000;
constexpr int64_t kMaxWindowSeconds = 30LL * 24 * 3600;
constexpr size_t kMaxMetadata = 16;
constexpr size_t kMaxMetadataKey = 64;
constexpr size_t kMaxMetadataValue = 512;

Status check_metadata(const json& metadata) {
  if (metadata.is_null()) return ok_status();
  bool right = metadata.is_object() && metadata.size() <= kMaxMetadata;
  if (right) {
    for (const auto& [name, value] : metadata.items()) {
      right = right && name.size() <= kMaxMetadataKey && value.is_string() &&
              value.get_ref<const std::string&>().size() <= kMaxMetadataValue;
    }
  }
  if (right) return ok_status();
  return invalid_argument(format("'metadata' must be up to {} strings of {} bytes with names of {} bytes",
                                 kMaxMetadata,
                                 kMaxMetadataValue,
                                 kMaxMetadataKey));
}

// What POST /v1/batches asks, besides the fields that it shares with POST /v1/jobs; those stay in `rest`.
struct BatchForm {
  FileId input_file = 0;
  std::string endpoint;
  std::string window;
  int64_t window_seconds = 0;
  std::string metadata;
  json rest;
};

Result<std::string> take_text(json& body, const char* name, std::string& param) {
  param = name;
  json value = body.contains(name) ? body[name] : json();
  body.erase(name);
  if (value.is_string()) return value.get<std::string>();
  return invalid_argument(format("'{}' must be a string", name));
}

// What is left belongs to the batch's job.
Status check_rest(const json& rest, std::string& param) {
  constexpr std::string_view kFollow[] = {"type", "model", "expires_after_seconds"};  // from the rest
  std::vector<std::string_view> names = {"completion_window", "metadata"};
  for (std::string_view name : job_fields(JobKind::kBatchInference)) {
    if (std::find(std::begin(kFollow), std::end(kFollow), name) == std::end(kFollow)) names.push_back(name);
  }
  for (const auto& [name, value] : rest.items()) {
    param = name;
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return invalid_argument(
        format("a batch has no field '{}': did you mean '{}'?", name, nearest_word(name, names)));
  }
  return ok_status();
}

Result<BatchForm> read_form(json body, std::string& param) {
  BatchForm form;
  ASSIGN_OR_RETURN(std::string input, take_text(body, "input_file_id", param));
  ASSIGN_OR_RETURN(form.input_file, parse_file_name(input));
  ASSIGN_OR_RETURN(form.endpoint, take_text(body, "endpoint", param));
  if (form.endpoint != "/v1/chat/completions" && form.endpoint != "/v1/completions") {
    return invalid_argument("'endpoint' must be /v1/chat/completions or /v1/completions");
  }
  ASSIGN_OR_RETURN(form.window, take_text(body, "completion_window", param));
  ASSIGN_OR_RETURN(form.window_seconds, parse_completion_window(form.window));
  param = "output_expires_after";
  if (!body.value("output_expires_after", json()).is_null()) {
    return invalid_argument(
        "'output_expires_after' is known, but not served: files stay until they are deleted");
  }
  body.erase("output_expires_after");
  param = "metadata";
  json metadata = body.value("metadata", json());
  RETURN_IF_ERROR(check_metadata(metadata));
  form.metadata = metadata.dump();
  body.erase("metadata");
  RETURN_IF_ERROR(check_rest(body, param));
  param.clear();
  form.rest = std::move(body);
  return form;
}

http::Response refusal(const Status& status, const std::string& param) {
  if (status.code() == StatusCode::kInvalidArgument) {
    return error_reply({.status = 400, .message = status.message(), .param = param});
  }
  if (status.code() != StatusCode::kNotFound) return error_reply(status);
  const char* code = param == "model" ? "model_not_found" : "not_found";
  return error_reply({.status = 404, .message = status.message(), .param = param, .code = code});
}

}  // namespace

Result<int64_t> parse_completion_window(const std::string& text) {
  constexpr std::pair<char, int64_t> kUnits[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 24 * 3600}};
  for (const auto& [unit, seconds] : kUnits) {
    if (!text.ends_with(unit)) continue;
    Result<int64_t> count =
        parse_number(text.substr(0, text.size() - 1), "completion_window", 1, kMaxWindowSeconds / seconds);
    if (count.ok()) return count.value() * seconds;
  }
  return invalid_argument("'completion_window' must be 24h, or another time from 1s to 30d");
}

void BatchesApi::add_routes(http::Router& router) {
  using Method = void (BatchesApi::*)(const http::Request&, const WriterPtr&);
  constexpr std::tuple<const char*, const char*, Method> kRoutes[] = {
      {"POST", "/v1/batches", &BatchesApi::create},
      {"GET", "/v1/batches", &BatchesApi::list},
      {"GET", "/v1/batches/{id}", &BatchesApi::get},
      {"POST", "/v1/batches/{id}/cancel", &BatchesApi::cancel},
  };
  for (const auto& [method, path, handler] : kRoutes) {
    router.add(method, path, on_worker(parts_.workers, std::bind_front(handler, this)));
  }
}

Result<SubmitJob> BatchesApi::read_request(const http::Request& request, std::string& param) const {
  json body = json_is_too_deep(request.body) ? json() : json::parse(request.body, nullptr, false);
  if (!body.is_object()) return invalid_argument("the body must be a JSON object");
  ASSIGN_OR_RETURN(std::string key, idempotency_key(request));
  ASSIGN_OR_RETURN(BatchForm form, read_form(body, param));
  param = "input_file_id";
  ASSIGN_OR_RETURN(StoredFile input, parts_.store.batches().file(form.input_file));
  if (input.purpose != FilePurpose::kBatch) {
    return invalid_argument(format("{} was not uploaded with the purpose 'batch'", file_name(input.id)));
  }
  ASSIGN_OR_RETURN(BatchSummary summary,
                   check_batch_input(parts_.contents.path(input.content), form.endpoint));
  json job = std::move(form.rest);
  job["type"] = to_string(JobKind::kBatchInference);
  job["model"] = summary.model;
  job["input_file_id"] = file_name(input.id);
  job["endpoint"] = form.endpoint;
  if (!job.contains("project")) {
    param = "project";
    ASSIGN_OR_RETURN(job["project"], project_of(request));
  }
  int64_t now_us = parts_.now_us();
  ASSIGN_OR_RETURN(SubmitJob submit, parse_job_request(job.dump(), parts_.catalogue, now_us, param));
  submit.expires_us = now_us + form.window_seconds * kMicroseconds;
  submit.idempotency = {.key = key, .body_hash = request_hash(kRoute, request.body)};
  submit.batch = NewBatch{.input_file = input.id,
                          .completion_window = form.window,
                          .metadata = form.metadata,
                          .total = summary.num_items,
                          .num_replicas = read_job_spec(submit.spec).replicas,
                          .replica_spec = replica_spec(submit.spec)};
  return submit;
}

void BatchesApi::create(const http::Request& request, const WriterPtr& writer) {
  std::string param;
  Result<SubmitJob> submit = read_request(request, param);
  if (!submit.ok()) return refuse(request, refusal(submit.status(), param), writer);
  if (std::optional<ApiError> refused = apply_quota(submit.value(), parts_.catalogue)) {
    return refuse(request, error_reply(*refused), writer);
  }
  std::string project = submit.value().project;
  int max_queued = submit.value().max_queued;
  Outcome outcome = parts_.commit.commit(parts_.now_us(), std::move(submit).value());
  if (outcome.ok() && outcome.value().id == 0)
    return void(writer->send(queue_full_reply(project, max_queued)));
  if (outcome.ok()) return answer_as_made(outcome.value(), writer);
  bool mismatch = outcome.status().code() == StatusCode::kInvalidArgument;
  writer->send(
      mismatch ? error_reply(
                     {.status = 422, .message = outcome.status().message(), .code = "idempotency_key_reused"})
               : error_reply(outcome.status()));
}

// What cannot be carried out now may have been, under the same key, before its input or its model went.
void BatchesApi::refuse(const http::Request& request,
                        const http::Response& refusal,
                        const WriterPtr& writer) const {
  Result<std::string> key = idempotency_key(request);
  Result<std::string> project = project_of(request);
  if (!key.ok() || key.value().empty() || !project.ok() || json_is_too_deep(request.body)) {
    return void(writer->send(refusal));
  }
  std::string asked = asked_project(request.body);
  auto given = parts_.store.answer_to(asked.empty() ? project.value() : asked, key.value());
  if (!given.ok()) return void(writer->send(error_reply(given.status())));
  bool same = given.value() && given.value()->body_hash == request_hash(kRoute, request.body);
  if (!same) return void(writer->send(refusal));
  answer_as_made({.id = given.value()->job, .version = 1, .replayed = true}, writer);
}

Result<BatchView> BatchesApi::view(JobId job) const {
  // The batch first: once it is closed, the job has ended.
  ASSIGN_OR_RETURN(Batch batch, parts_.store.batches().batch(job));
  BatchView found{.batch = std::move(batch)};
  ASSIGN_OR_RETURN(found.job, parts_.store.job(job));
  ASSIGN_OR_RETURN(found.events, parts_.store.events(job, 0, kMaxEvents));
  return found;
}

void BatchesApi::answer(JobId job, const WriterPtr& writer) const {
  Result<BatchView> found = view(job);
  writer->send(found.ok() ? http::Response{.body = render_batch(found.value())}
                          : error_reply(found.status()));
}

// What the first request with this key was answered.
void BatchesApi::answer_as_made(const Written& written, const WriterPtr& writer) const {
  Result<BatchView> found = view(written.id);
  if (!found.ok()) return void(writer->send(error_reply(found.status())));
  const auto& [job, batch, events] = found.value();
  BatchView made{.job = {.id = job.id,
                         .kind = job.kind,
                         .spec = job.spec,
                         .created_us = job.created_us,
                         .expires_us = job.expires_us},
                 .batch = {.job = batch.job,
                           .input_file = batch.input_file,
                           .completion_window = batch.completion_window,
                           .metadata = batch.metadata,
                           .total = batch.total}};
  http::Response response{.body = render_batch(made)};
  if (written.replayed) response.headers.add("Idempotent-Replayed", "true");
  writer->send(response);
}

void BatchesApi::list(const http::Request& request, const WriterPtr& writer) {
  JobFilter filter{.kind = JobKind::kBatchInference};
  std::string limit = request.query_param("limit");
  Result<int64_t> size = parse_number(limit.empty() ? "20" : limit, "limit", 1, kMaxPage);
  std::string after = request.query_param("after");
  Result<JobId> before = after.empty() ? Result<JobId>(0) : parse_batch_name(after);
  Result<std::string> project = project_of(request);
  for (const Status& status : {size.status(), before.status(), project.status()}) {
    if (!status.ok()) return void(writer->send(error_reply({.status = 400, .message = status.message()})));
  }
  filter.limit = static_cast<int>(size.value()) + 1;  // one more tells whether there are more
  filter.before = before.value();
  if (request.headers.find("OpenAI-Project") != nullptr) filter.project = project.value();
  Result<std::vector<Job>> jobs = parts_.store.jobs(filter);
  if (!jobs.ok()) return void(writer->send(error_reply(jobs.status())));
  bool has_more = jobs.value().size() > static_cast<size_t>(size.value());
  if (has_more) jobs.value().pop_back();
  std::vector<BatchView> views;
  for (const Job& job : jobs.value()) {
    Result<BatchView> found = view(job.id);
    if (!found.ok()) return void(writer->send(error_reply(found.status())));
    views.push_back(std::move(found).value());
  }
  writer->send({.body = render_batch_list(views, has_more)});
}

void BatchesApi::get(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_batch_name(request.path_param("id"));
  if (!id.ok()) return void(writer->send(error_reply(id.status())));
  answer(id.value(), writer);
}

void BatchesApi::cancel(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_batch_name(request.path_param("id"));
  Result<Batch> batch = id.ok() ? parts_.store.batches().batch(id.value()) : Result<Batch>(id.status());
  if (!batch.ok()) return void(writer->send(error_reply(batch.status())));
  Result<Job> job = carry_out({parts_.store, parts_.commit, parts_.now_us}, JobAction::kCancel, id.value());
  if (!job.ok()) return void(writer->send(error_reply(job.status())));
  answer(id.value(), writer);
}

}  // namespace llm_dist::cluster
