#include "cluster/api/job_actions.h"

#include <optional>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr int kMaxRaces = 16;

// The change that the action means for a job; nothing when it is so already.
Result<std::optional<ChangeJob>> change_for(JobAction action, const Job& job) {
  using enum JobState;
  ChangeJob change{.job = job.id, .expected_version = job.version, .to = job.state, .intent = job.intent};
  bool held = job.state == kStarting || job.state == kRunning;  // an attempt must end first
  bool waits = job.state == kQueued || job.state == kRecovering;
  switch (action) {
    case JobAction::kCancel:
      if (job.state == kCancelling || job.state == kCancelled) return std::optional<ChangeJob>();
      change.to = job.state == kQueued || job.state == kSuspended ? kCancelled : kCancelling;
      change.intent = Intent::kNone;
      change.reason = "cancelled_by_user";
      if (may_become(job.state, change.to)) return std::optional(change);
      break;
    case JobAction::kSuspend:
      if (job.state == kSuspended || (held && job.intent == Intent::kSuspend))
        return std::optional<ChangeJob>();
      change.reason = "suspended_by_user";
      if (waits) change.to = kSuspended;
      if (held) change.intent = Intent::kSuspend;
      if (waits || held) return std::optional(change);
      break;
    case JobAction::kResume:
      if (waits || (held && job.intent == Intent::kNone)) return std::optional<ChangeJob>();
      change.reason = "resumed_by_user";
      change.intent = Intent::kNone;
      if (job.state == kSuspended) change.to = kQueued;
      if (held || job.state == kSuspended) return std::optional(change);
      break;
  }
  return failed_precondition(format("{} is {}: too late for that", job_name(job.id), job.state));
}

}  // namespace

Result<Job> carry_out(const ActionParts& parts,
                      JobAction action,
                      JobId id,
                      const std::function<Status(const Job&)>& check) {
  for (int race = 0; race < kMaxRaces; ++race) {
    ASSIGN_OR_RETURN(Job job, parts.store.job(id));
    if (check) RETURN_IF_ERROR(check(job));
    ASSIGN_OR_RETURN(std::optional<ChangeJob> change, change_for(action, job));
    if (!change) return job;
    Outcome outcome = parts.commit.commit(parts.now_us(), *change);
    if (outcome.ok()) return parts.store.job(id);
    // The supervisor changes jobs too: what it did in between is looked at.
    if (outcome.status().code() != StatusCode::kFailedPrecondition) return outcome.status();
  }
  return unavailable(format("{} changes too fast: try again", job_name(id)));
}

}  // namespace llm_dist::cluster
