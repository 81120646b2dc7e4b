// What a client may wish of a job that exists.
#pragma once

#include <functional>

#include "cluster/clock.h"
#include "cluster/job_action.h"
#include "cluster/store/group_commit.h"

namespace llm_dist::cluster {

struct ActionParts {
  Store& store;
  GroupCommit& commit;
  const WallClock& now_us;
};
// Carries it out, anew where another change came in between, and shows the job as it is then. `check` may
// refuse what it finds. not_found: no such job; failed_precondition: too late.
Result<Job> carry_out(const ActionParts& parts,
                      JobAction action,
                      JobId id,
                      const std::function<Status(const Job&)>& check = nullptr);

}  // namespace llm_dist::cluster
