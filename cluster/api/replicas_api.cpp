#include "cluster/api/replicas_api.h"

#include <nlohmann/json.hpp>

#include "cluster/api/api_reply.h"
#include "src/base/format.h"
#include "src/http/digest.h"

namespace llm_dist::cluster {
namespace {

constexpr int kMaxRaces = 8;

Result<Enrolment> parse_enrolment(const std::string& text) {
  nlohmann::json body = nlohmann::json::parse(text, nullptr, false);
  auto has_text = [&](const char* name) { return body.contains(name) && body[name].is_string(); };
  bool whole = body.is_object() && has_text("job") && has_text("secret") && has_text("endpoint") &&
               body.contains("attempt") && body["attempt"].is_number_integer();
  if (!whole) return invalid_argument("needs 'job', 'attempt', 'secret' and 'endpoint'");
  Enrolment enrolment{.attempt = body["attempt"], .secret = body["secret"], .endpoint = body["endpoint"]};
  ASSIGN_OR_RETURN(enrolment.job, parse_job_name(body["job"].get<std::string>()));
  if (!enrolment.endpoint.starts_with("http://") && !enrolment.endpoint.starts_with("https://")) {
    return invalid_argument("'endpoint' must be an http:// or https:// URL");
  }
  return enrolment;
}

}  // namespace

void ReplicasApi::add_routes(http::Router& router) {
  auto handler = [this](const http::Request& request, const WriterPtr& writer) { enrol(request, writer); };
  router.add("POST", "/v1/replicas", on_worker(parts_.workers, handler));
}

void ReplicasApi::enrol(const http::Request& request, const WriterPtr& writer) {
  Result<Enrolment> parsed = parse_enrolment(request.body);
  if (!parsed.ok()) return void(writer->send(error_reply(parsed.status())));
  for (int race = 0; race < kMaxRaces; ++race) {
    if (auto answer = try_to_enrol(parsed.value())) return void(writer->send(*answer));
  }
  writer->send(error_reply(unavailable("the job changes too fast: try again")));
}

// None: the job has changed meanwhile, and may take the replica all the same.
std::optional<http::Response> ReplicasApi::try_to_enrol(const Enrolment& enrolment) {
  Result<Job> job = parts_.store.job(enrolment.job);
  Result<std::vector<Attempt>> attempts = parts_.store.attempts(enrolment.job);
  // A replica that is refused never asks again: what cannot be read now is no refusal.
  for (const Status& read : {job.status(), attempts.status()}) {
    if (!read.ok() && read.code() != StatusCode::kNotFound) return error_reply(read);
  }
  // Whoever lacks the secret learns nothing else.
  ApiError refused{.status = 403, .message = "no such attempt, or not its secret", .code = "bad_secret"};
  if (!job.ok() || !attempts.ok() || attempts.value().empty()) return error_reply(refused);
  const Attempt& attempt = attempts.value().back();
  bool proved = http::secure_equal(http::sha256_hex(enrolment.secret), attempt.secret_hash);
  if (attempt.number != enrolment.attempt || !proved) return error_reply(refused);
  const http::Response registered{.body = R"({"registered":true})"};
  if (attempt.endpoint == enrolment.endpoint) return registered;
  if (!attempt.endpoint.empty() || attempt.state != AttemptState::kStarting ||
      job.value().state != JobState::kStarting) {
    return error_reply(failed_precondition("the attempt has registered already, or is over"));
  }
  Outcome outcome = parts_.commit.commit(
      parts_.now_us(),
      ChangeJob{
          .job = enrolment.job,
          .expected_version = job.value().version,
          .attempt = enrolment.attempt,
          .to = JobState::kRunning,
          .intent = job.value().intent,
          .reason = "registered",
          .attempt_change = AttemptChange{.state = AttemptState::kRunning, .endpoint = enrolment.endpoint}});
  if (outcome.ok()) return registered;
  if (outcome.status().code() == StatusCode::kFailedPrecondition) return std::nullopt;
  return error_reply(outcome.status());
}

}  // namespace llm_dist::cluster
