#include "cluster/api/job_actions.h"

#include <optional>
#include <string>

#include "cluster/store/batch.h"
#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr int kMaxRaces = 16;

std::string reason_of(JobAction action) {
  switch (action) {
    case JobAction::kCancel: return "cancelled_by_user";
    case JobAction::kSuspend: return "suspended_by_user";
    case JobAction::kResume: return "resumed_by_user";
  }
  return "";
}

// A replica that a batch has more is suspended and resumed as the batch is.
Status check_follows(JobAction action, const Job& job) {
  if (job.replica_of == 0 || action == JobAction::kCancel) return ok_status();
  return failed_precondition(format("{} is a replica of {} and follows it: ask that of {}",
                                    job_name(job.id),
                                    batch_name(job.replica_of),
                                    job_name(job.replica_of)));
}

}  // namespace

Result<Job> carry_out(const ActionParts& parts,
                      JobAction action,
                      JobId id,
                      const std::function<Status(const Job&)>& check) {
  for (int race = 0; race < kMaxRaces; ++race) {
    ASSIGN_OR_RETURN(Job job, parts.store.job(id));
    if (check) RETURN_IF_ERROR(check(job));
    RETURN_IF_ERROR(check_follows(action, job));
    ASSIGN_OR_RETURN(std::optional<ChangeJob> change, change_for(action, job, reason_of(action)));
    if (!change) return job;
    Outcome outcome = parts.commit.commit(parts.now_us(), *change);
    if (outcome.ok()) return parts.store.job(id);
    // The supervisor changes jobs too: what it did in between is looked at.
    if (outcome.status().code() != StatusCode::kFailedPrecondition) return outcome.status();
  }
  return unavailable(format("{} changes too fast: try again", job_name(id)));
}

}  // namespace llm_dist::cluster
