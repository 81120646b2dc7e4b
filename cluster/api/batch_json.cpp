#include "cluster/api/batch_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cluster/api/job_json.h"
#include "cluster/job_spec.h"

namespace llm_dist::cluster {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMicroseconds = 1'000'000;

std::string dump(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}
ordered_json seconds_or_null(int64_t us) {
  return us == 0 ? ordered_json(nullptr) : ordered_json(us / kMicroseconds);
}
ordered_json file_or_null(FileId id) { return id == 0 ? ordered_json(nullptr) : ordered_json(file_name(id)); }

ordered_json file_json(const StoredFile& file) {
  ordered_json out;
  out["id"] = file_name(file.id);
  out["object"] = "file";
  out["bytes"] = file.bytes;
  out["created_at"] = file.created_us / kMicroseconds;
  out["expires_at"] = nullptr;
  out["filename"] = file.filename;
  out["purpose"] = to_string(file.purpose);
  out["status"] = "processed";
  return out;
}

// When the job first came to be in one of the states; 0: never.
int64_t first_time_in(const std::vector<Event>& events, std::initializer_list<JobState> states) {
  for (const Event& event : events) {
    if (std::find(states.begin(), states.end(), event.to) != states.end()) return event.at_us;
  }
  return 0;
}

ordered_json errors_json(const Job& job) {
  if (job.state != JobState::kFailed) return nullptr;
  ordered_json error;
  error["code"] = job.reason;
  error["message"] = job.message.empty() ? job.reason : job.message;
  error["param"] = nullptr;
  error["line"] = nullptr;
  return {{"object", "list"}, {"data", ordered_json::array({error})}};
}

void add_times(ordered_json& out, const BatchView& view) {
  using enum JobState;
  auto when_closed = [&](JobState state) {
    return seconds_or_null(view.job.state == state ? view.batch.closed_us : 0);
  };
  out["created_at"] = view.job.created_us / kMicroseconds;
  out["in_progress_at"] = seconds_or_null(first_time_in(view.events, {kRunning}));
  out["expires_at"] = seconds_or_null(view.job.expires_us);
  out["finalizing_at"] = seconds_or_null(first_time_in(view.events, {kFinalizing}));
  out["completed_at"] = when_closed(kSucceeded);
  out["failed_at"] = when_closed(kFailed);
  out["expired_at"] = when_closed(kExpired);
  out["cancelling_at"] = seconds_or_null(first_time_in(view.events, {kCancelling, kCancelled}));
  out["cancelled_at"] = when_closed(kCancelled);
}

ordered_json batch_json(const BatchView& view) {
  const auto& [job, batch, events] = view;
  JobSpec spec = read_job_spec(job.spec);
  ordered_json out;
  out["id"] = batch_name(job.id);
  out["object"] = "batch";
  out["job"] = job_name(job.id);
  out["endpoint"] = spec.endpoint;
  out["model"] = spec.model;
  out["errors"] = errors_json(job);
  out["input_file_id"] = file_name(batch.input_file);
  out["completion_window"] = batch.completion_window;
  out["status"] = status_of(view);
  out["output_file_id"] = file_or_null(batch.output_file);
  out["error_file_id"] = file_or_null(batch.error_file);
  add_times(out, view);
  out["request_counts"] = {{"total", batch.total}, {"completed", batch.completed}, {"failed", batch.failed}};
  out["metadata"] = ordered_json::parse(batch.metadata, nullptr, false);
  return out;
}

ordered_json list_json(ordered_json data, bool has_more) {
  ordered_json out;
  out["object"] = "list";
  out["first_id"] = data.empty() ? ordered_json(nullptr) : data.front()["id"];
  out["last_id"] = data.empty() ? ordered_json(nullptr) : data.back()["id"];
  out["has_more"] = has_more;
  out["data"] = std::move(data);
  return out;
}

}  // namespace

std::string render_file(const StoredFile& file) { return dump(file_json(file)); }
std::string render_file_list(const std::vector<StoredFile>& files, bool has_more) {
  ordered_json data = ordered_json::array();
  for (const StoredFile& file : files) data.push_back(file_json(file));
  return dump(list_json(std::move(data), has_more));
}
std::string render_file_deleted(FileId id) {
  ordered_json out;
  out["id"] = file_name(id);
  out["object"] = "file";
  out["deleted"] = true;
  return dump(out);
}

std::string_view status_of(const BatchView& view) {
  const Job& job = view.job;
  if (is_terminal(job.state) && !view.batch.closed) {
    return batch_status(job.state == JobState::kCancelled ? JobState::kCancelling : JobState::kFinalizing);
  }
  bool waits = job.state == JobState::kQueued || job.state == JobState::kStarting;
  bool ran = waits && first_time_in(view.events, {JobState::kRunning}) != 0;
  return batch_status(ran ? JobState::kRunning : job.state);
}

std::string render_batch(const BatchView& view) { return dump(batch_json(view)); }
std::string render_batch_list(const std::vector<BatchView>& views, bool has_more) {
  ordered_json data = ordered_json::array();
  for (const BatchView& view : views) data.push_back(batch_json(view));
  return dump(list_json(std::move(data), has_more));
}

}  // namespace llm_dist::cluster
