#include "cluster/job_action.h"

#include "src/base/format.h"

namespace llm_dist::cluster {

Result<std::optional<ChangeJob>> change_for(JobAction action, const Job& job, const std::string& reason) {
  using enum JobState;
  ChangeJob change{.job = job.id,
                   .expected_version = job.version,
                   .to = job.state,
                   .intent = job.intent,
                   .reason = reason};
  bool held = job.state == kStarting || job.state == kRunning;  // an attempt must end first
  bool waits = job.state == kQueued || job.state == kRecovering;
  switch (action) {
    case JobAction::kCancel:
      if (job.state == kCancelling || job.state == kCancelled) return std::optional<ChangeJob>();
      change.to = job.state == kQueued || job.state == kSuspended ? kCancelled : kCancelling;
      change.intent = Intent::kNone;
      if (may_become(job.state, change.to)) return std::optional(change);
      break;
    case JobAction::kSuspend:
      if (job.state == kSuspended || (held && job.intent == Intent::kSuspend))
        return std::optional<ChangeJob>();
      if (waits) change.to = kSuspended;
      if (held) change.intent = Intent::kSuspend;
      if (waits || held) return std::optional(change);
      break;
    case JobAction::kResume:
      if (waits || (held && job.intent == Intent::kNone)) return std::optional<ChangeJob>();
      change.intent = Intent::kNone;
      if (job.state == kSuspended) change.to = kQueued;
      if (held || job.state == kSuspended) return std::optional(change);
      break;
  }
  return failed_precondition(format("{} is {}: too late for that", job_name(job.id), job.state));
}

}  // namespace llm_dist::cluster
