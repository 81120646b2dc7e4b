#include "cluster/batch_runner.h"

#include <algorithm>
#include <set>

#include "cluster/batch_output.h"
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
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(id));
  bool lives = !attempts.empty() && attempts.back().state == AttemptState::kRunning;
  auto current = runs_.find(job.id);
  bool over = job.state != kRunning || !lives;
  if (current != runs_.end() && (over || current->second->attempt() != attempts.back().number)) {
    RETURN_IF_ERROR(end_run(job, attempts));
  }
  // Its end may have been the last that was to be recorded.
  ASSIGN_OR_RETURN(Batch batch, parts_.store.batches().batch(id));
  bool done = batch.completed + batch.failed >= batch.total;
  if (done && (job.state == kRunning || job.state == kRecovering)) return finalize(job, "completed");
  if (job.state == kRunning && lives) return run(job, batch, attempts.back());
  bool rests = attempts.empty() || attempts.back().state == AttemptState::kEnded;
  if (is_terminal(job.state) || (job.state == kFinalizing && rests)) return close(job, batch);
  return ok_status();
}

// Nothing is sent any more; whose engine died with something in flight remembers it.
Status BatchRunner::end_run(const Job& job, const std::vector<Attempt>& attempts) {
  BatchRun& run = *runs_.at(job.id);
  run.stop();
  auto attempt = std::find_if(
      attempts.begin(), attempts.end(), [&](const Attempt& each) { return each.number == run.attempt(); });
  // It is being stopped, and how it ends says nothing.
  bool died = attempt != attempts.end() && is_death(*attempt) && !is_terminal(job.state);
  std::vector<CountDeaths::Item> items = died ? run.in_flight() : std::vector<CountDeaths::Item>();
  if (!items.empty()) {
    log_warning("{}: the engine of attempt {} died with {} requests in flight",
                batch_name(job.id),
                run.attempt(),
                items.size());
    RETURN_IF_ERROR(commit(CountDeaths{.job = job.id,
                                       .attempt = run.attempt(),
                                       .max_deaths = parts_.options.max_deaths,
                                       .items = std::move(items)},
                           job.id));
  }
  runs_.erase(job.id);
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

Status BatchRunner::run(const Job& job, const Batch& batch, const Attempt& attempt) {
  if (runs_.contains(job.id)) return ok_status();
  ASSIGN_OR_RETURN(StoredFile input, parts_.store.batches().file(batch.input_file));
  Result<std::unique_ptr<BatchRun>> started =
      BatchRun::start({.store = parts_.store,
                       .commit = parts_.commit,
                       .on_done = parts_.wake,
                       .options = parts_.options,
                       .job = job.id,
                       .attempt = attempt.number,
                       .total = batch.total,
                       .input_path = parts_.contents.path(input.content),
                       .replica_url = attempt.endpoint,
                       .endpoint = read_job_spec(job.spec).endpoint,
                       .api_key = parts_.secrets.api_key(job.id, attempt.number),
                       .threads = parts_.threads,
                       .connect = parts_.connect,
                       .seed = parts_.seed + static_cast<uint64_t>(job.id)});
  if (!started.ok()) {
    if (started.status().code() != StatusCode::kDataLoss) return started.status();
    return finalize(job, "input_lost", started.status().message());
  }
  log_info("{}: {} of {} items recorded, the rest goes to attempt {}",
           batch_name(job.id),
           batch.completed + batch.failed,
           batch.total,
           attempt.number);
  runs_[job.id] = std::move(started).value();
  return ok_status();
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
