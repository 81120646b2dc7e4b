#include "cluster/supervisor.h"

#include <algorithm>
#include <filesystem>

#include "cluster/job_spec.h"
#include "src/base/exit_code.h"
#include "src/base/format.h"
#include "src/base/log.h"
#include "src/http/digest.h"

namespace llm_dist::cluster {
namespace {

using enum JobState;

constexpr int kActiveAtOnce = 10'000;
constexpr int kWaitingAtOnce = 64;
constexpr int64_t kSecondUs = 1'000'000;
constexpr int64_t kEndOfReplicaUs = 5'000'000;  // after its last request, until its ranks have ended
constexpr const char* kLost = "launch_interrupted";
constexpr const char* kSuspendedWhy = "suspended";

// What a crash of ours interrupted, or a user suspended, is not the job's failure.
bool is_failure(std::string_view why) { return why != kLost && why != kSuspendedWhy; }
bool is_failure(const Attempt& attempt) { return is_failure(attempt.reason); }

// What refuses a configuration will refuse it again. Where it has served once, its files and its machine may
// come back: a folder that is not mounted yet, for example.
bool is_refused_for_good(int exit_code, const std::vector<Attempt>& attempts) {
  return is_refusal(exit_code) &&
         std::all_of(attempts.begin(), attempts.end(), [](const Attempt& a) { return a.endpoint.empty(); });
}

// Why its attempt is to end, as far as the store says so: another coordinator will know it too.
std::optional<std::string> wish_to_stop(const Job& job) {
  if (job.state == kCancelling) return "cancelled";
  if (job.state == kFinalizing) return "finished";
  if (job.intent == Intent::kSuspend) return kSuspendedWhy;
  return std::nullopt;
}

bool has_expired(const Job& job, int64_t now_us) { return job.expires_us != 0 && job.expires_us <= now_us; }

// Of an attempt that was to end it cannot be told whether it would have anyway. `known`: the reason for which
// this coordinator is ending it, if it is.
std::string why_it_ended(const Job& job, const std::string& known, int64_t now_us) {
  if (!known.empty()) return known;
  if (std::optional<std::string> wish = wish_to_stop(job)) return *wish;
  return has_expired(job, now_us) ? "expired" : "process_exit";
}

Candidate candidate_of(const Job& job) {
  return {job.project, read_job_spec(job.spec).num_ranks(), job.replica_of != 0};
}

}  // namespace

int64_t backoff_us(const SupervisorOptions& options, JobId job, int num_failures) {
  int64_t wait = options.backoff_us;
  for (int i = 1; i < num_failures && wait < options.max_backoff_us; ++i) wait *= 2;
  wait = std::min(wait, options.max_backoff_us);
  // Knuth's multiplicative hash: jobs that failed together do not come back together.
  uint64_t mixed =
      (static_cast<uint64_t>(job) * 0x9E3779B97F4A7C15ULL) ^ (static_cast<uint64_t>(num_failures) << 17);
  constexpr int64_t kSteps = 401;
  int64_t jitter = static_cast<int64_t>((mixed >> 20) % kSteps) - kSteps / 2;  // per mille, ±200
  return wait + wait * jitter / 1000;
}

Status Supervisor::tick() {
  JobFilter active{.states = {kStarting, kRunning, kCancelling, kFinalizing, kRecovering},
                   .limit = kActiveAtOnce};
  ASSIGN_OR_RETURN(std::vector<Job> jobs, parts_.store.jobs(active));
  std::reverse(jobs.begin(), jobs.end());  // oldest first
  SlotUse use{.slots = parts_.launcher.slots()};
  ASSIGN_OR_RETURN(std::vector<HeldSlots> held, parts_.store.held_slots());
  for (const HeldSlots& each : held) use.add(each.project, each.slot_numbers);
  // Those that failed go before what is new: small jobs would keep a large one from ever coming back.
  Queue queue(std::move(use));
  for (const Job& job : jobs) RETURN_IF_ERROR(look_after(job, queue));
  RETURN_IF_ERROR(expire_waiting());
  return start_waiting(queue);
}

Status Supervisor::look_after(const Job& job, Queue& queue) {
  // A batch is finished by who writes its files; here its replica is ended.
  if (job.state == kFinalizing && job.kind != JobKind::kBatchInference) return finish(job);
  if (job.attempt == 0) return end_resting(job);
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(job.id));
  const Attempt& attempt = attempts.back();
  if (attempt.state != AttemptState::kEnded) return look_after_attempt(job, attempt);
  return job.state == kRecovering ? start_recovering(job, queue) : end_resting(job);
}

// A job that is being cancelled and has nothing left to stop.
Status Supervisor::end_resting(const Job& job) {
  if (job.state != kCancelling) return ok_status();
  return write({.job = job.id, .expected_version = job.version, .to = kCancelled, .reason = job.reason});
}

Status Supervisor::look_after_attempt(const Job& job, const Attempt& attempt) {
  // The launch was written down first; without a handle nobody knows how far it came.
  if (attempt.handle.empty()) return attempt_lost(job, attempt);
  // A measurement runs as soon as it is started; a replica once it has registered.
  if (job.kind == JobKind::kBench && job.state == kStarting) {
    return write({.job = job.id,
                  .expected_version = job.version,
                  .attempt = attempt.number,
                  .to = kRunning,
                  .intent = job.intent,
                  .reason = "launched",
                  .attempt_change = AttemptChange{.state = AttemptState::kRunning}});
  }
  Live& live = live_of(job.id, attempt.number);
  Result<Observation> seen =
      parts_.launcher.observe(attempt.handle, attempt_folder(parts_.places, job.id, attempt.number));
  if (!seen.ok()) return look_again(attempt, seen.status());
  if (!seen->running) return attempt_ended(job, attempt, *seen);
  live.in_doubt = false;
  if (live.endpoint != attempt.endpoint) {
    live.endpoint = attempt.endpoint;
    parts_.watch.watch({job.id, attempt.number}, live.endpoint);
  }
  std::optional<std::string> why = why_to_stop(job, attempt);
  if (!why) return ok_status();
  Status asked = stop(attempt, live, *why);
  return asked.ok() ? asked : look_again(attempt, asked);
}

int64_t Supervisor::passed_us(TimePoint since) const {
  return std::chrono::duration_cast<std::chrono::microseconds>(parts_.steady_now() - since).count();
}

Supervisor::Live& Supervisor::live_of(JobId job, int64_t attempt) {
  auto live = live_.find(job);
  if (live != live_.end() && live->second.attempt == attempt) return live->second;
  forget(job);
  return live_[job] = {.attempt = attempt, .since = parts_.steady_now()};
}

// Nothing follows from what cannot be told now: what is taken for dead and lives would be started twice. The
// next tick looks again, and only the first says so.
Status Supervisor::look_again(const Attempt& attempt, const Status& why) {
  Live& live = live_of(attempt.job, attempt.number);
  if (std::exchange(live.in_doubt, true)) return ok_status();
  log_warning("{}: it cannot be told whether attempt {} lives, and is looked for again: {}",
              job_name(attempt.job),
              attempt.number,
              why.message());
  return ok_status();
}

std::optional<std::string> Supervisor::why_to_stop(const Job& job, const Attempt& attempt) {
  const Live& live = live_.at(job.id);
  if (std::optional<std::string> wish = wish_to_stop(job)) return wish;
  if (!live.why.empty()) return live.why;
  if (has_expired(job, parts_.now_us())) return "expired";
  if (job.state == kStarting && passed_us(live.since) > parts_.options.start_timeout_us)
    return "start_timeout";
  if (!live.endpoint.empty() &&
      parts_.watch.failing_us({job.id, attempt.number}) > parts_.options.unresponsive_us) {
    return "unresponsive";
  }
  return std::nullopt;
}

// Drained, asked, killed: each step once the one before has had its time.
Status Supervisor::stop(const Attempt& attempt, Live& live, const std::string& why) {
  live.why = why;
  const SupervisorOptions& options = parts_.options;
  const int64_t waited_us = passed_us(live.ending_since);
  switch (live.ending) {
    case Ending::kNone: {
      // What does not answer will not listen either.
      bool serves = !live.endpoint.empty() && options.drain_seconds > 0;
      Ending first = why == "unresponsive" ? Ending::kKilled
                     : serves              ? Ending::kDrained
                                           : Ending::kTerminated;
      return begin_end(attempt, live, first);
    }
    case Ending::kDrained:
      if (waited_us <= options.drain_seconds * kSecondUs + kEndOfReplicaUs) return ok_status();
      return begin_end(attempt, live, Ending::kTerminated);
    case Ending::kTerminated:
      return waited_us <= options.kill_after_us ? ok_status() : begin_end(attempt, live, Ending::kKilled);
    case Ending::kKilled: return ok_status();
  }
  return ok_status();
}

Status Supervisor::begin_end(const Attempt& attempt, Live& live, Ending ending) {
  if (ending == Ending::kDrained) {
    parts_.watch.drain({attempt.job, attempt.number}, parts_.secrets.api_key(attempt.job, attempt.number));
  } else {
    RETURN_IF_ERROR(parts_.launcher.stop(attempt.handle,
                                         ending == Ending::kKilled ? StopMode::kKill : StopMode::kTerminate));
  }
  live.ending = ending;
  live.ending_since = parts_.steady_now();
  return ok_status();
}

Result<int> Supervisor::sweep(const Attempt& attempt) {
  return parts_.launcher.sweep(attempt_mark(parts_.places, attempt.job, attempt.number),
                               attempt_folder(parts_.places, attempt.job, attempt.number));
}

Status Supervisor::attempt_lost(const Job& job, const Attempt& attempt) {
  Result<int> found = sweep(attempt);
  if (!found.ok()) return look_again(attempt, found.status());
  log_warning("{}: the launch of attempt {} was interrupted; {} processes of it ended",
              job_name(job.id),
              attempt.number,
              *found);
  ChangeJob change{.job = job.id, .expected_version = job.version, .attempt = attempt.number};
  change.attempt_change = AttemptChange{.state = AttemptState::kEnded, .reason = kLost, .exit_code = -1};
  return end_attempt(job, std::move(change), kLost);
}

Status Supervisor::attempt_ended(const Job& job, const Attempt& attempt, const Observation& seen) {
  // Without an exit code its keeper was killed, and what the keeper kept may live.
  if (!seen.exit_code) {
    Result<int> swept = sweep(attempt);
    if (!swept.ok()) return look_again(attempt, swept.status());
  }
  const std::string why = why_it_ended(job, live_.at(job.id).why, parts_.now_us());
  int code = seen.exit_code.value_or(-1);
  ChangeJob change{.job = job.id, .expected_version = job.version, .attempt = attempt.number};
  change.message = code < 0 ? "the exit code is unknown" : format("exit code {}", code);
  if (is_refusal(code) && !seen.last_words.empty()) change.message += ": " + seen.last_words;
  change.attempt_change = AttemptChange{.state = AttemptState::kEnded, .reason = why, .exit_code = code};
  return end_attempt(job, std::move(change), why);
}

Status Supervisor::end_attempt(const Job& job, ChangeJob change, const std::string& why) {
  RETURN_IF_ERROR(settle(job, std::move(change), why));
  // If the job had changed it is settled again, for the same reason.
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(job.id));
  auto is_open = [](const Attempt& each) { return each.state != AttemptState::kEnded; };
  if (std::none_of(attempts.begin(), attempts.end(), is_open)) forget(job.id);
  return ok_status();
}

// What becomes of a job whose attempt is over.
Status Supervisor::settle(const Job& job, ChangeJob change, const std::string& why) {
  if (job.state == kFinalizing) {
    return parts_
        .commit(ChangeAttempt{.job = job.id, .attempt = change.attempt, .change = *change.attempt_change})
        .status();
  }
  if (job.state == kCancelling) {
    change.to = kCancelled;
    change.reason = job.reason;
  } else if (job.kind == JobKind::kBench && change.attempt_change->exit_code == 0 && job.state == kRunning) {
    change.to = kFinalizing;
    change.reason = "completed";
  } else if (job.intent == Intent::kSuspend) {
    change.to = kSuspended;
    change.reason = "suspended_by_user";
  } else if (why == "expired" && job.state == kRunning) {
    change.to = kFinalizing;
    change.reason = "expired";
  } else {
    return settle_failure(job, std::move(change), why);
  }
  return write(std::move(change));
}

Status Supervisor::settle_failure(const Job& job, ChangeJob change, const std::string& why) {
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(job.id));
  if (is_refused_for_good(change.attempt_change->exit_code.value_or(-1), attempts)) {
    change.to = kFailed;
    change.reason = "refused";
    return write(std::move(change));
  }
  auto failures = std::count_if(
      attempts.begin(), attempts.end(), [](const Attempt& attempt) { return is_failure(attempt); });
  bool over = job.kind == JobKind::kBench
                  ? failures >= parts_.options.max_attempts
                  : quick_failures(job, attempts) >= parts_.options.max_quick_failures;
  change.to = over && is_failure(why) ? kFailed : kRecovering;
  change.reason = change.to == kRecovering      ? why
                  : job.kind == JobKind::kBench ? "attempts_exhausted"
                                                : "crash_loop";
  return write(std::move(change));
}

// The newest attempts in a row that did not live long, and in which no item of a batch was settled; one that
// has not ended yet ends now. What never registered did not live, however long it took to die.
int Supervisor::quick_failures(const Job& job, const std::vector<Attempt>& attempts) const {
  int64_t progress = 0;
  if (job.kind == JobKind::kBatchInference || job.replica_of != 0) {
    Result<int64_t> recorded = parts_.store.batches().progress_attempt(job.id);
    if (recorded.ok()) progress = recorded.value();
  }
  int count = 0;
  for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
    if (attempt->number <= progress) break;
    int64_t ended = attempt->ended_us == 0 ? parts_.now_us() : attempt->ended_us;
    if (!attempt->endpoint.empty() && ended - attempt->started_us >= parts_.options.stable_us) break;
    if (is_failure(*attempt)) ++count;
  }
  return count;
}

Status Supervisor::finish(const Job& job) {
  ChangeJob change{.job = job.id, .expected_version = job.version, .to = kSucceeded, .reason = "completed"};
  std::string folder = attempt_folder(parts_.places, job.id, job.attempt);
  if (job.reason == "expired") {
    change.to = kExpired;
    change.reason = "expired";
  } else if (std::error_code error; !std::filesystem::exists(result_file_of(folder), error)) {
    change.to = kFailed;
    change.reason = "no_result";
    change.message = "the measurement ended well and left no result";
  }
  return write(std::move(change));
}

Status Supervisor::expire_waiting() {
  ASSIGN_OR_RETURN(std::vector<Job> jobs,
                   parts_.store.overdue(Overdue::kWaiting, parts_.now_us(), kActiveAtOnce));
  for (const Job& job : jobs) {
    RETURN_IF_ERROR(
        write({.job = job.id, .expected_version = job.version, .to = kExpired, .reason = "expired"}));
  }
  return ok_status();
}

Status Supervisor::start_recovering(const Job& job, Queue& queue) {
  if (has_expired(job, parts_.now_us())) {
    return write({.job = job.id, .expected_version = job.version, .to = kExpired, .reason = "expired"});
  }
  ASSIGN_OR_RETURN(std::vector<Attempt> attempts, parts_.store.attempts(job.id));
  const int64_t pause = backoff_us(parts_.options, job.id, std::max(1, quick_failures(job, attempts)));
  const int64_t left = attempts.back().ended_us + pause - parts_.now_us();
  // More than a pause is left only where the clock was set back since.
  if (left <= 0 || left > pause) return start_if_room(job, queue).status();
  // Meanwhile its slots stay its own: a measurement of hours would keep a replica from coming back.
  queue.next(candidate_of(job), parts_.catalogue.quota(job.project));
  return ok_status();
}

Status Supervisor::start_waiting(Queue& queue) {
  // Who is passed over may be many: the others are looked for behind them.
  WaitingFilter filter{.limit = kWaitingAtOnce};
  for (bool more = true; more && !queue.is_held_up();) {
    ASSIGN_OR_RETURN(std::vector<Job> jobs, parts_.store.waiting(filter));
    bool all_started = true;
    for (const Job& job : jobs) {
      ASSIGN_OR_RETURN(bool started, start_if_room(job, queue));
      all_started = all_started && started;
    }
    more = std::ssize(jobs) == filter.limit && !all_started;
    if (more) filter.after = jobs.back().id;
    filter.without_projects = queue.projects_held_up();
  }
  return ok_status();
}

// False: it has to wait.
Result<bool> Supervisor::start_if_room(const Job& job, Queue& queue) {
  const Candidate candidate = candidate_of(job);
  const ProjectQuota quota = parts_.catalogue.quota(job.project);
  const Turn turn = queue.next(candidate, quota);
  switch (turn.verdict) {
    case Verdict::kStart: RETURN_IF_ERROR(start(job, turn.slots)); return true;
    case Verdict::kNever: break;
    default: return false;
  }
  const int ranks = candidate.ranks;
  const Slots slots = parts_.launcher.slots();
  std::string message =
      ranks > slots.size() ? format("{} ranks, and there are {} slots", ranks, slots.size())
      : ranks > slots.most_ranks()
          ? format("{} ranks, and the {} slots share {} GPUs", ranks, slots.size(), slots.most_ranks())
          : format("{} ranks, and project '{}' may have {} slots", ranks, job.project, quota.max_slots);
  RETURN_IF_ERROR(write({.job = job.id,
                         .expected_version = job.version,
                         .to = kFailed,
                         .reason = "needs_more_slots",
                         .message = message}));
  return true;
}

Status Supervisor::start(const Job& job, const std::vector<int>& slots) {
  int64_t number = job.attempt + 1;
  Result<LaunchRequest> plan = plan_attempt(
      job, number, parts_.catalogue, parts_.places, parts_.secrets, parts_.options.drain_seconds);
  if (!plan.ok()) {
    return write({.job = job.id,
                  .expected_version = job.version,
                  .to = kFailed,
                  .reason = "model_not_found",
                  .message = plan.status().message()});
  }
  plan->slots = slots;
  Outcome begun =
      parts_.commit(StartAttempt{.job = job.id,
                                 .expected_version = job.version,
                                 .launcher = std::string(parts_.launcher.name()),
                                 .secret_hash = http::sha256_hex(parts_.secrets.registration(job.id, number)),
                                 .slots = plan.value().num_ranks,
                                 .slot_numbers = slots});
  // A user was faster: the next tick sees what there is.
  if (!begun.ok())
    return begun.status().code() == StatusCode::kFailedPrecondition ? ok_status() : begun.status();
  Result<std::string> handle = parts_.launcher.launch(plan.value());
  if (!handle.ok()) return launch_failed(job.id, number, handle.status());
  live_of(job.id, number);
  log_info("{}: attempt {} with {} ranks", job_name(job.id), number, plan.value().num_ranks);
  Outcome found =
      parts_.commit(ChangeAttempt{.job = job.id, .attempt = number, .change = {.handle = handle.value()}});
  return found.status();
}

Status Supervisor::launch_failed(JobId id, int64_t number, const Status& why) {
  const Attempt attempt{.job = id, .number = number};
  Result<int> swept = sweep(attempt);
  // Without a handle it is swept again at the next tick, as after a crash.
  if (!swept.ok()) return look_again(attempt, swept.status());
  // A user may have had a wish since the attempt was begun.
  ASSIGN_OR_RETURN(Job job, parts_.store.job(id));
  ChangeJob change{.job = id, .expected_version = job.version, .attempt = number, .message = why.message()};
  change.attempt_change =
      AttemptChange{.state = AttemptState::kEnded, .reason = "launch_failed", .exit_code = -1};
  return end_attempt(job, std::move(change), "launch_failed");
}

// A change that came too late is no error: the next tick sees the newer state.
Status Supervisor::write(ChangeJob change) {
  JobId id = change.job;
  JobState to = change.to;
  std::string reason = change.reason;
  Outcome outcome = parts_.commit(std::move(change));
  if (outcome.ok()) {
    log_info("{}: {} ({})", job_name(id), to, reason);
    return ok_status();
  }
  if (outcome.status().code() != StatusCode::kFailedPrecondition) return outcome.status();
  log_debug("{} does not become {}: {}", job_name(id), to, outcome.status().message());
  return ok_status();
}

void Supervisor::forget(JobId job) {
  auto live = live_.find(job);
  if (live == live_.end()) return;
  if (!live->second.endpoint.empty()) parts_.watch.forget({job, live->second.attempt});
  live_.erase(live);
}

}  // namespace llm_dist::cluster
