#include "cluster/batch_runner.h"

#include <algorithm>
#include <set>

#include "cluster/batch_output.h"
#include "cluster/job_action.h"
#include "cluster/job_spec.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

using enum JobState;

// Whether an attempt that ended so may have been ended by what it was doing.
bool is_death(const Attempt& attempt) {
  return attempt.state == AttemptState::kEnded &&
         (attempt.reason == "process_exit" || attempt.reason == "unresponsive");
}

// What a batch's other replicas are to do as it stands, and why.
std::pair<JobAction, const char*> wish_for_replicas(const Job& batch) {
  if (is_terminal(batch.state) || batch.state == kCancelling || batch.state == kFinalizing) {
    return {JobAction::kCancel, "batch_ended"};
  }
  if (batch.state == kSuspended || batch.intent == Intent::kSuspend) {
    return {JobAction::kSuspend, "batch_suspended"};
  }
  return {JobAction::kResume, "batch_resumed"};
}

// Whether items are sent at all: also while its own replica starts anew, if there are others.
bool takes_items(const Job& job, const std::vector<Attempt>& attempts) {
  if (job.state == kRunning) return true;
  bool has_run = std::any_of(
      attempts.begin(), attempts.end(), [](const Attempt& attempt) { return !attempt.endpoint.empty(); });
  return has_run && (job.state == kStarting || job.state == kRecovering);
}

}  // namespace

Status BatchRunner::tick() {
  ASSIGN_OR_RETURN(std::vector<Batch> batches, parts_.store.batches().open_batches());
  std::set<JobId> open;
  for (const Batch& batch : batches) {
    open.insert(batch.job);
    TimePoint& resting_until = resting_until_[batch.job];
    if (parts_.threads->now() < resting_until) continue;
    Status status = look_after(batch.job);
    if (status.ok()) continue;
    log_error("{}: {}", batch_name(batch.job), status.to_string());
    // A disk that is full is not written full again with each tick.
    resting_until = parts_.threads->now() + parts_.rest_after_failure;
  }
  auto is_closed = [&](const auto& entry) { return !open.contains(entry.first); };
  std::erase_if(runs_, is_closed);
  std::erase_if(resting_until_, is_closed);
  return ok_status();
}

Status BatchRunner::look_after(JobId id) {
  ASSIGN_OR_RETURN(Job job, parts_.store.job(id));
  ASSIGN_OR_RETURN(std::vector<Job> replicas, parts_.store.batches().replicas(id));
  ASSIGN_OR_RETURN(bool led, lead(job, replicas));
  if (!led) return ok_status();
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(id));
  bool active = takes_items(job, attempts);
  std::vector<Serving> replicas_now;
  if (active) {
    ASSIGN_OR_RETURN(replicas_now, serving(job, replicas));
  }
  RETURN_IF_ERROR(end_lanes(job, replicas_now));
  // An end may have been the last that was to be recorded.
  ASSIGN_OR_RETURN(Batch batch, parts_.store.batches().batch(id));
  bool done = batch.completed + batch.failed >= batch.total;
  if (done && (job.state == kRunning || job.state == kRecovering)) return finalize(job, "completed");
  if (active) return run(job, batch, replicas_now);
  runs_.erase(id);
  bool rests = attempts.empty() || attempts.back().state == AttemptState::kEnded;
  if (is_terminal(job.state) || (job.state == kFinalizing && rests)) return close(job, batch);
  return ok_status();
}

// The other replicas are suspended, resumed and ended with the batch. False: one of them changed meanwhile,
// and is to be looked at again: a batch that is closed leads nobody.
Result<bool> BatchRunner::lead(const Job& job, const std::vector<Job>& replicas) {
  auto [action, reason] = wish_for_replicas(job);
  for (const Job& replica : replicas) {
    if (is_terminal(replica.state)) continue;
    Result<std::optional<ChangeJob>> change = change_for(action, replica, reason);
    if (!change.ok() || !change.value()) continue;  // too late, or so already
    Outcome outcome = parts_.commit(std::move(*change.value()));
    if (outcome.status().code() == StatusCode::kFailedPrecondition) return false;
    if (!outcome.ok()) return outcome.status();
  }
  return true;
}

Result<std::vector<BatchRunner::Serving>> BatchRunner::serving(const Job& job,
                                                               const std::vector<Job>& replicas) {
  std::vector<Job> jobs = {job};
  jobs.insert(jobs.end(), replicas.begin(), replicas.end());
  std::vector<Serving> found;
  for (const Job& each : jobs) {
    if (each.state != kRunning) continue;
    ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(each.id));
    if (attempts.empty() || attempts.back().state != AttemptState::kRunning) continue;
    found.push_back({{each.id, attempts.back().number}, attempts.back().endpoint});
  }
  return found;
}

// Nothing is sent any more to who serves no more; whose engine died with something in flight remembers it.
Status BatchRunner::end_lanes(const Job& job, const std::vector<Serving>& serving) {
  auto run = runs_.find(job.id);
  if (run == runs_.end()) return ok_status();
  for (const ReplicaAttempt& lane : run->second->replicas()) {
    auto is_lane = [&](const Serving& each) { return each.attempt == lane; };
    if (std::any_of(serving.begin(), serving.end(), is_lane)) continue;
    ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(lane.job));
    auto attempt = std::find_if(
        attempts.begin(), attempts.end(), [&](const Attempt& each) { return each.number == lane.number; });
    // Where it is being stopped, how it ends says nothing.
    bool died = attempt != attempts.end() && is_death(*attempt) && !is_terminal(job.state);
    RETURN_IF_ERROR(run->second->remove(lane, died));
  }
  return ok_status();
}

// Nothing more is executed: what there is becomes files once the replica has ended.
Status BatchRunner::finalize(const Job& job, const std::string& reason, const std::string& message) {
  return commit(ChangeJob{.job = job.id,
                          .expected_version = job.version,
                          .to = kFinalizing,
                          .reason = reason,
                          .message = message},
                job.id);
}

Status BatchRunner::run(const Job& job, const Batch& batch, const std::vector<Serving>& serving) {
  // A batch whose input turns out to be lost can end in no other state.
  const bool may_end = job.state != kStarting;
  if (!runs_.contains(job.id)) {
    if (serving.empty() || !may_end) return ok_status();
    RETURN_IF_ERROR(start_run(job, batch));
  }
  auto run = runs_.find(job.id);
  if (run == runs_.end()) return ok_status();
  if (Status input = run->second->input_status(); !input.ok()) {
    return may_end ? finalize(job, "input_lost", input.message()) : ok_status();
  }
  std::vector<ReplicaAttempt> known = run->second->replicas();
  for (const auto& [attempt, url] : serving) {
    if (std::find(known.begin(), known.end(), attempt) != known.end()) continue;
    if (!run->second->add(attempt, url, parts_.secrets.api_key(attempt.job, attempt.number))) continue;
    log_info("{}: {} of {} items recorded, the rest goes to {} attempt {} too",
             batch_name(job.id),
             batch.completed + batch.failed,
             batch.total,
             job_name(attempt.job),
             attempt.number);
  }
  return ok_status();
}

Status BatchRunner::start_run(const Job& job, const Batch& batch) {
  ASSIGN_OR_RETURN(StoredFile input, parts_.store.batches().file(batch.input_file));
  Result<std::unique_ptr<BatchRun>> started =
      BatchRun::start({.store = parts_.store,
                       .commit = parts_.commit,
                       .enqueue = parts_.enqueue,
                       .on_done = parts_.wake,
                       .options = parts_.options,
                       .job = job.id,
                       .total = batch.total,
                       .input_path = parts_.contents.path(input.content),
                       .endpoint = read_job_spec(job.spec).endpoint,
                       .threads = parts_.threads,
                       .connect = parts_.connect,
                       .seed = parts_.seed + static_cast<uint64_t>(job.id)});
  if (started.ok()) {
    runs_[job.id] = std::move(started).value();
    return ok_status();
  }
  if (started.status().code() != StatusCode::kDataLoss) return started.status();
  return finalize(job, "input_lost", started.status().message());
}

// Writes what there is, however the job ended.
Status BatchRunner::close(const Job& job, const Batch& batch) {
  bool expired = job.state == kExpired || (job.state == kFinalizing && job.reason == "expired");
  ASSIGN_OR_RETURN(BatchFiles files, write_batch_files(parts_.store, parts_.contents, job, batch, expired));
  CloseBatch& close = files.close;
  if (job.state == kFinalizing) {
    close.to = expired ? kExpired : job.reason == "completed" ? kSucceeded : kFailed;
    close.reason = job.reason;
    close.message = job.message;
  }
  Outcome outcome = parts_.commit(std::move(close));
  if (!outcome.ok()) return outcome.status();
  for (const auto& content : files.contents) content->keep();
  log_info("{}: closed with {} of {} items completed", batch_name(job.id), batch.completed, batch.total);
  return ok_status();
}

// A change that came too late is no error: the next tick sees the newer state.
Status BatchRunner::commit(CommandBody body, JobId job) {
  Outcome outcome = parts_.commit(std::move(body));
  if (outcome.ok()) return ok_status();
  if (outcome.status().code() != StatusCode::kFailedPrecondition) return outcome.status();
  log_debug("{}: {}", batch_name(job), outcome.status().message());
  return ok_status();
}

}  // namespace llm_dist::cluster
