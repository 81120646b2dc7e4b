#include "cluster/api/job_json.h"

#include <nlohmann/json.hpp>

#include "cluster/store/batch.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::ordered_json;

constexpr double kMicroseconds = 1e6;

ordered_json text_or_null(std::string_view text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}
ordered_json seconds_or_null(int64_t us) {
  return us == 0 ? ordered_json(nullptr) : ordered_json(static_cast<double>(us) / kMicroseconds);
}
std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json job_json(const Job& job) {
  ordered_json out;
  out["id"] = job_name(job.id);
  out["object"] = "job";
  out["type"] = to_string(job.kind);
  out["project"] = job.project;
  out["priority"] = job.priority;
  out["state"] = to_string(job.state);
  out["intent"] = text_or_null(to_string(job.intent));
  out["reason"] = text_or_null(job.reason);
  out["message"] = text_or_null(job.message);
  out["version"] = job.version;
  out["attempt"] = job.attempt;
  out["retry_of"] = job.retry_of == 0 ? ordered_json(nullptr) : ordered_json(job_name(job.retry_of));
  out["replica_of"] = job.replica_of == 0 ? ordered_json(nullptr) : ordered_json(batch_name(job.replica_of));
  out["created_at"] = seconds_or_null(job.created_us);
  out["updated_at"] = seconds_or_null(job.updated_us);
  out["expires_at"] = seconds_or_null(job.expires_us);
  out["spec"] = ordered_json::parse(job.spec, nullptr, false);
  return out;
}

ordered_json event_json(const Event& event) {
  ordered_json out;
  out["object"] = "job.event";
  out["job"] = job_name(event.job);
  out["number"] = event.number;
  out["from"] = event.from ? ordered_json(to_string(*event.from)) : ordered_json(nullptr);
  out["to"] = to_string(event.to);
  out["intent"] = text_or_null(to_string(event.intent));
  out["reason"] = text_or_null(event.reason);
  out["message"] = text_or_null(event.message);
  out["attempt"] = event.attempt;
  out["at"] = seconds_or_null(event.at_us);
  return out;
}

ordered_json attempt_json(const Attempt& attempt, const AttemptExtras& extras) {
  ordered_json out;
  out["object"] = "job.attempt";
  out["job"] = job_name(attempt.job);
  out["number"] = attempt.number;
  out["state"] = to_string(attempt.state);
  out["launcher"] = attempt.launcher;
  out["slots"] = attempt.slots;
  out["slot_numbers"] = attempt.slot_numbers;
  out["endpoint"] = text_or_null(attempt.endpoint);
  bool serves = attempt.state == AttemptState::kRunning && !attempt.endpoint.empty();
  out["api_key"] = serves ? text_or_null(extras.api_key) : ordered_json(nullptr);
  out["reason"] = text_or_null(attempt.reason);
  out["exit_code"] =
      attempt.state == AttemptState::kEnded ? ordered_json(attempt.exit_code) : ordered_json(nullptr);
  out["progress"] = nullptr;
  if (extras.progress) {
    out["progress"] = {{"done", extras.progress->done}, {"total", extras.progress->total}};
  }
  out["started_at"] = seconds_or_null(attempt.started_us);
  out["ended_at"] = seconds_or_null(attempt.ended_us);
  return out;
}

template <typename T, typename Render>
std::string list_of(const std::vector<T>& items, bool has_more, const Render& render) {
  ordered_json out;
  out["object"] = "list";
  out["data"] = ordered_json::array();
  for (const T& item : items) out["data"].push_back(render(item));
  out["has_more"] = has_more;
  return dump(out);
}

}  // namespace

std::string render_job(const Job& job) { return dump(job_json(job)); }

std::string render_submitted(const Job& job) {
  return render_job({.id = job.id,
                     .project = job.project,
                     .kind = job.kind,
                     .spec = job.spec,
                     .priority = job.priority,
                     .retry_of = job.retry_of,
                     .created_us = job.created_us,
                     .updated_us = job.created_us,
                     .expires_us = job.expires_us});
}

std::string render_job_list(const std::vector<Job>& jobs, bool has_more) {
  return list_of(jobs, has_more, job_json);
}
std::string render_event(const Event& event) { return dump(event_json(event)); }
std::string render_event_list(const std::vector<Event>& events, bool has_more) {
  return list_of(events, has_more, event_json);
}
std::string render_attempts(const std::vector<Attempt>& attempts,
                            const std::function<AttemptExtras(const Attempt&)>& extras_of) {
  return list_of(
      attempts, false, [&](const Attempt& attempt) { return attempt_json(attempt, extras_of(attempt)); });
}

std::string_view batch_status(JobState state) {
  switch (state) {
    case JobState::kQueued:
    case JobState::kStarting: return "validating";
    case JobState::kRunning:
    case JobState::kRecovering:
    case JobState::kSuspended: return "in_progress";
    case JobState::kFinalizing: return "finalizing";
    case JobState::kCancelling: return "cancelling";
    case JobState::kSucceeded: return "completed";
    case JobState::kFailed: return "failed";
    case JobState::kCancelled: return "cancelled";
    case JobState::kExpired: return "expired";
  }
  return "failed";
}

}  // namespace llm_dist::cluster
