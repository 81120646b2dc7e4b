#include "cluster/api/jobs_api.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <tuple>

#include "cluster/api/api_reply.h"
#include "cluster/api/job_actions.h"
#include "cluster/api/job_json.h"
#include "cluster/api/quota_reply.h"
#include "cluster/api/request_fields.h"
#include "cluster/job_spec.h"
#include "cluster/local_launcher.h"
#include "src/base/format.h"
#include "src/http/digest.h"
#include "src/http/sse.h"

namespace llm_dist::cluster {
namespace {

constexpr int kMaxPage = 1000;
constexpr int kMaxWaitSeconds = 60;
constexpr std::streamsize kLogBytes = 1 << 20;

// The version in an entity tag: "\"7\"" or "W/\"7\"". Nothing else was ever given out.
Result<int64_t> parse_etag(std::string_view tag, const char* header) {
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  if (tag.size() < 3 || tag.front() != '"' || tag.back() != '"') {
    return invalid_argument(format("{} must be one entity tag, as ETag gave it", header));
  }
  return parse_number(std::string(tag.substr(1, tag.size() - 2)), header, 1, INT64_MAX);
}

Result<JobFilter> parse_filter(const http::Request& request) {
  JobFilter filter;
  if (std::string limit = request.query_param("limit"); !limit.empty()) {
    ASSIGN_OR_RETURN(int64_t value, parse_number(limit, "limit", 1, kMaxPage));
    filter.limit = static_cast<int>(value);
  }
  if (std::string after = request.query_param("after"); !after.empty()) {
    ASSIGN_OR_RETURN(filter.before, parse_job_name(after));
  }
  if (std::string project = request.query_param("project"); !project.empty()) filter.project = project;
  if (std::string type = request.query_param("type"); !type.empty()) {
    ASSIGN_OR_RETURN(filter.kind, parse_job_kind(type));
  }
  std::string states = request.query_param("state");
  while (!states.empty()) {
    size_t comma = states.find(',');
    ASSIGN_OR_RETURN(JobState state, parse_job_state(states.substr(0, comma)));
    if (std::find(filter.states.begin(), filter.states.end(), state) == filter.states.end()) {
      filter.states.push_back(state);
    }
    states = comma == std::string::npos ? "" : states.substr(comma + 1);
  }
  return filter;
}

// Which part of which attempt's log.
struct LogPlace {
  int64_t attempt = 0;
  int64_t offset = 0;
  int64_t tail = 0;  // so many bytes before its end instead; 0: from the offset
};

Result<LogPlace> parse_log_place(const http::Request& request, const Job& job) {
  LogPlace place{.attempt = job.attempt};
  if (std::string attempt = request.query_param("attempt"); !attempt.empty()) {
    ASSIGN_OR_RETURN(place.attempt, parse_number(attempt, "attempt", 1, job.attempt));
  }
  std::string offset = request.query_param("offset");
  if (!offset.empty()) {
    ASSIGN_OR_RETURN(place.offset, parse_number(offset, "offset", 0, INT64_MAX));
  }
  if (std::string tail = request.query_param("tail"); !tail.empty()) {
    if (!offset.empty()) return invalid_argument("'offset' and 'tail' exclude each other");
    ASSIGN_OR_RETURN(place.tail, parse_number(tail, "tail", 1, kLogBytes));
  }
  return place;
}

http::Response job_reply(const Job& job) {
  return {.headers = {{"ETag", format("\"{}\"", job.version)}}, .body = render_job(job)};
}

// The job that a submission makes at `at_us`, but for its id.
Job job_of(const SubmitJob& submit, int64_t at_us) {
  return {.project = submit.project,
          .kind = submit.kind,
          .spec = submit.spec,
          .priority = submit.priority,
          .retry_of = submit.retry_of,
          .created_us = at_us,
          .expires_us = submit.expires_us};
}

http::Response submission_reply(const Job& job) {
  return {.status = 201,
          .headers = {{"ETag", "\"1\""}, {"Location", "/v1/jobs/" + job_name(job.id)}},
          .body = render_submitted(job)};
}

}  // namespace

void JobsApi::add_routes(http::Router& router) {
  // Parsing is short and the commit has a thread of its own: a submission needs no worker.
  router.add("POST", "/v1/jobs", [this](const http::Request& request, const WriterPtr& writer) {
    submit(request, writer);
  });
  using Method = void (JobsApi::*)(const http::Request&, const WriterPtr&);
  constexpr std::tuple<const char*, const char*, Method> kMethods[] = {
      {"GET", "/v1/jobs", &JobsApi::list},
      {"GET", "/v1/jobs/{id}", &JobsApi::get},
      {"GET", "/v1/jobs/{id}/events", &JobsApi::events},
      {"GET", "/v1/jobs/{id}/attempts", &JobsApi::attempts},
      {"GET", "/v1/jobs/{id}/logs", &JobsApi::logs},
      {"POST", "/v1/jobs/{id}/retry", &JobsApi::retry}};
  for (const auto& [verb, path, method] : kMethods) {
    router.add(verb, path, on_worker(parts_.workers, std::bind_front(method, this)));
  }
  constexpr std::pair<const char*, JobAction> kActions[] = {
      {"cancel", JobAction::kCancel}, {"suspend", JobAction::kSuspend}, {"resume", JobAction::kResume}};
  for (const auto& [name, action] : kActions) {
    router.add("POST",
               format("/v1/jobs/{id}/{}", name),
               on_worker(parts_.workers, std::bind_front(&JobsApi::act, this, action)));
  }
}

void JobsApi::submit(const http::Request& request, const WriterPtr& writer) {
  std::string param;
  Result<SubmitJob> job = parse_job_request(request.body, parts_.catalogue, parts_.now_us(), param);
  if (!job.ok()) {
    bool no_model = job.status().code() == StatusCode::kNotFound;
    ApiError error{.status = no_model ? 404 : 400,
                   .message = job.status().message(),
                   .param = param,
                   .code = no_model ? "model_not_found" : ""};
    if (!no_model) return void(writer->send(error_reply(error)));
    std::string project = asked_project(request.body);
    return refuse(project.empty() ? "default" : project,
                  {.key = idempotency_key(request).ok() ? idempotency_key(request).value() : "",
                   .body_hash = request_hash("POST /v1/jobs", request.body)},
                  error,
                  writer);
  }
  if (job.value().kind == JobKind::kBatchInference) {
    writer->send(error_reply({.status = 400,
                              .message = "batches are made with POST /v1/batches, which reads their items",
                              .param = "type"}));
    return;
  }
  Result<std::string> key = idempotency_key(request);
  if (!key.ok()) {
    writer->send(error_reply(key.status()));
    return;
  }
  job.value().idempotency.key = key.value();
  submit(std::move(job).value(), writer);
}

void JobsApi::submit(SubmitJob job, const WriterPtr& writer) {
  if (std::optional<ApiError> refusal = apply_quota(job, parts_.catalogue)) {
    return refuse(job.project, job.idempotency, *refusal, writer);
  }
  InFlight flight{job.project, job.idempotency.key};
  if (!flight.second.empty()) {
    std::lock_guard lock(mutex_);
    if (!in_flight_.insert(flight).second) {
      writer->send(error_reply({.status = 409,
                                .message = "a request with this Idempotency-Key is being carried out",
                                .code = "idempotency_key_in_flight",
                                .retry_after_s = 1}));
      return;
    }
  }
  int64_t now_us = parts_.now_us();
  auto answer =
      [this, flight, writer, submitted = job_of(job, now_us), most = job.max_queued](const Outcome& outcome) {
        {
          std::lock_guard lock(mutex_);
          in_flight_.erase(flight);
        }
        bool refused = outcome.ok() && outcome.value().id == 0;
        if (refused) return void(writer->send(queue_full_reply(submitted.project, most)));
        answer_submission(submitted, outcome, writer);
      };
  parts_.commit.enqueue(now_us, std::move(job), std::move(answer));
}

// What cannot be carried out now may have been, under the same key, before the catalogue changed.
void JobsApi::refuse(const std::string& project,
                     const IdempotencyKey& asked,
                     const ApiError& error,
                     const WriterPtr& writer) {
  if (asked.key.empty()) return void(writer->send(error_reply(error)));
  auto answer = [this, project, asked, error](const http::Request&, const WriterPtr& to) {
    auto given = parts_.store.answer_to(project, asked.key);
    if (!given.ok()) return void(to->send(error_reply(given.status())));
    bool same = given.value() && given.value()->body_hash == asked.body_hash;
    if (same) return replay_submission(given.value()->job, to);
    to->send(error_reply(error));
  };
  on_worker(parts_.workers, answer)({}, writer);
}

void JobsApi::answer_submission(const Job& submitted, const Outcome& outcome, const WriterPtr& writer) {
  if (!outcome.ok()) {
    bool mismatch = outcome.status().code() == StatusCode::kInvalidArgument;
    writer->send(mismatch ? error_reply({.status = 422,
                                         .message = outcome.status().message(),
                                         .code = "idempotency_key_reused"})
                          : error_reply(outcome.status()));
    return;
  }
  JobId id = outcome.value().id;
  if (!outcome.value().replayed) {
    Job job = submitted;
    job.id = id;
    writer->send(submission_reply(job));
    return;
  }
  auto replay = [this, id](const http::Request&, const WriterPtr& to) { replay_submission(id, to); };
  on_worker(parts_.workers, replay)({}, writer);
}

// What the first request with this key was answered.
void JobsApi::replay_submission(JobId id, const WriterPtr& writer) {
  Result<Job> job = parts_.store.job(id);
  http::Response response = job.ok() ? submission_reply(job.value()) : error_reply(job.status());
  if (job.ok()) response.headers.add("Idempotent-Replayed", "true");
  writer->send(response);
}

void JobsApi::list(const http::Request& request, const WriterPtr& writer) {
  Result<JobFilter> filter = parse_filter(request);
  if (!filter.ok()) {
    writer->send(error_reply({.status = 400, .message = filter.status().message()}));
    return;
  }
  size_t limit = filter.value().limit;
  ++filter.value().limit;  // one more tells whether there are more
  Result<std::vector<Job>> jobs = parts_.store.jobs(filter.value());
  if (!jobs.ok()) {
    writer->send(error_reply(jobs.status()));
    return;
  }
  bool has_more = jobs.value().size() > limit;
  if (has_more) jobs.value().resize(limit);
  writer->send({.body = render_job_list(jobs.value(), has_more)});
}

void JobsApi::get(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_job_name(request.path_param("id"));
  Result<Job> job = id.ok() ? parts_.store.job(id.value()) : Result<Job>(id.status());
  if (!job.ok()) {
    writer->send(error_reply(job.status()));
    return;
  }
  std::optional<int64_t> seen;
  if (const std::string* tag = request.headers.find("If-None-Match")) {
    // A tag that is none of ours matches nothing.
    if (Result<int64_t> version = parse_etag(*tag, "If-None-Match"); version.ok()) seen = version.value();
  }
  std::string wait = request.query_param("wait");
  if (wait.empty()) wait = "0";
  Result<int64_t> seconds = parse_number(wait, "wait", 0, kMaxWaitSeconds);
  if (!seconds.ok()) {
    writer->send(error_reply(seconds.status()));
    return;
  }
  if (seconds.value() == 0) {
    bool unchanged = seen && *seen == job.value().version;
    http::Response response = job_reply(job.value());
    if (unchanged) response = {.status = 304, .content_type = "", .headers = response.headers};
    writer->send(response);
    return;
  }
  auto poll = make_long_poll(
      writer, id.value(), seen, Deadline::at(parts_.feed.now() + std::chrono::seconds(seconds.value())));
  if (!parts_.feed.add(id.value(), std::move(poll))) {
    writer->send(error_reply(resource_exhausted("too many requests wait for jobs")));
  }
}

void JobsApi::events(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_job_name(request.path_param("id"));
  Result<Job> job = id.ok() ? parts_.store.job(id.value()) : Result<Job>(id.status());
  if (!job.ok()) {
    writer->send(error_reply(job.status()));
    return;
  }
  const std::string* last = request.headers.find("Last-Event-ID");
  std::string after_text = last != nullptr && !last->empty() ? *last : request.query_param("after");
  Result<int64_t> after = parse_number(after_text.empty() ? "0" : after_text, "Last-Event-ID", 0, INT64_MAX);
  if (!after.ok()) {
    writer->send(error_reply(after.status()));
    return;
  }
  if (after.value() > job.value().version) {
    // Nobody was told of such an event, and a stream from there would wait for ever.
    writer->send(error_reply(invalid_argument(format(
        "{} has {} events: none after {}", job_name(id.value()), job.value().version, after.value()))));
    return;
  }
  if (request.query_param("stream") == "false") {
    Result<std::vector<Event>> events = parts_.store.events(id.value(), after.value(), kMaxPage);
    writer->send(events.ok() ? http::Response{.body = render_event_list(events.value(),
                                                                        events.value().size() == kMaxPage)}
                             : error_reply(events.status()));
    return;
  }
  if (is_terminal(job.value().state) && after.value() == job.value().version) {
    // Nothing will ever follow: 204 is what stops an EventSource from coming back.
    writer->send({.status = 204, .content_type = ""});
    return;
  }
  writer->start_stream(200, http::sse_headers());
  parts_.feed.add(id.value(), make_event_stream(writer, id.value(), after.value(), parts_.feed.now()));
}

void JobsApi::attempts(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_job_name(request.path_param("id"));
  Result<Job> job = id.ok() ? parts_.store.job(id.value()) : Result<Job>(id.status());
  Result<std::vector<Attempt>> attempts =
      job.ok() ? parts_.store.attempts(id.value()) : Result<std::vector<Attempt>>(job.status());
  if (!attempts.ok()) return void(writer->send(error_reply(attempts.status())));
  // Who may ask a replica makes it work: reading is not enough.
  bool shows_keys = parts_.access.has(request, Scope::kWrite);
  auto extras_of = [&](const Attempt& attempt) {
    std::string folder = attempt_folder({.folder = parts_.attempts_folder}, attempt.job, attempt.number);
    return AttemptExtras{.api_key = shows_keys ? parts_.secrets.api_key(attempt.job, attempt.number) : "",
                         .progress = read_progress(folder)};
  };
  // It has keys in it.
  writer->send(
      {.headers = {{"Cache-Control", "no-store"}}, .body = render_attempts(attempts.value(), extras_of)});
}

void JobsApi::logs(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_job_name(request.path_param("id"));
  Result<Job> job = id.ok() ? parts_.store.job(id.value()) : Result<Job>(id.status());
  if (!job.ok()) return void(writer->send(error_reply(job.status())));
  Result<LogPlace> place = parse_log_place(request, job.value());
  if (!place.ok()) return void(writer->send(error_reply(place.status())));
  std::string folder =
      attempt_folder({.folder = parts_.attempts_folder}, job.value().id, place.value().attempt);
  std::ifstream file(log_file_of(folder), std::ios::binary);
  int64_t offset = place.value().offset;
  if (place.value().tail > 0) {
    file.seekg(0, std::ios::end);
    offset = std::max<int64_t>(0, static_cast<int64_t>(file.tellg()) - place.value().tail);
  }
  std::string text(kLogBytes, '\0');
  file.seekg(offset);
  file.read(text.data(), kLogBytes);
  text.resize(std::max<std::streamsize>(0, file.gcount()));
  writer->send({.content_type = "text/plain; charset=utf-8",
                .headers = {{"X-Next-Offset", std::to_string(offset + static_cast<int64_t>(text.size()))}},
                .body = text});
}

void JobsApi::act(JobAction action, const http::Request& request, const WriterPtr& writer) {
  const std::string* match = request.headers.find("If-Match");
  Result<int64_t> expected = match == nullptr ? Result<int64_t>(0) : parse_etag(*match, "If-Match");
  Result<JobId> id = parse_job_name(request.path_param("id"));
  if (!id.ok() || !expected.ok()) {
    return void(writer->send(error_reply(id.ok() ? expected.status() : id.status())));
  }
  bool mismatch = false;
  auto check = [&](const Job& job) {
    mismatch = expected.value() != 0 && expected.value() != job.version;
    if (!mismatch) return ok_status();
    return failed_precondition(
        format("{} has changed since: it is at version {}", job_name(job.id), job.version));
  };
  Result<Job> job = carry_out({parts_.store, parts_.commit, parts_.now_us}, action, id.value(), check);
  if (mismatch) {
    return void(writer->send(
        error_reply({.status = 412, .message = job.status().message(), .code = "version_mismatch"})));
  }
  writer->send(job.ok() ? job_reply(job.value()) : error_reply(job.status()));
}

void JobsApi::retry(const http::Request& request, const WriterPtr& writer) {
  Result<JobId> id = parse_job_name(request.path_param("id"));
  Result<Job> old = id.ok() ? parts_.store.job(id.value()) : Result<Job>(id.status());
  Result<std::string> key = idempotency_key(request);
  if (!old.ok() || !key.ok()) {
    writer->send(error_reply(old.ok() ? key.status() : old.status()));
    return;
  }
  const Job& job = old.value();
  if (job.kind == JobKind::kBatchInference) {
    return void(writer->send(error_reply(invalid_argument("a batch is made anew with POST /v1/batches"))));
  }
  submit({.project = job.project,
          .kind = job.kind,
          .spec = job.spec,
          .priority = job.priority,
          .expires_us = job.expires_us == 0 ? 0 : parts_.now_us() + job.expires_us - job.created_us,
          .retry_of = job.id,
          .idempotency = {.key = key.value(),
                          .body_hash = http::sha256_hex("POST /v1/jobs/" + job_name(job.id) + "/retry")}},
         writer);
}

}  // namespace llm_dist::cluster
