#include "cluster/retention.h"

#include <filesystem>

#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

constexpr int kJobsAtOnce = 64;

}  // namespace

Result<bool> Retention::tick() {
  if (parts_.keep_us == 0) return false;
  ASSIGN_OR_RETURN(std::vector<Job> jobs,
                   parts_.store.overdue(Overdue::kEnded, parts_.now_us() - parts_.keep_us, kJobsAtOnce));
  for (const Job& job : jobs) RETURN_IF_ERROR(remove(job.id));
  if (!jobs.empty()) log_info("removed {} jobs that ended long ago", jobs.size());
  return jobs.size() == kJobsAtOnce;
}

// The logs first: a job without logs is found again, logs without a job are not.
Status Retention::remove(JobId job) {
  std::string folder = parts_.attempts_folder + "/" + job_name(job);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (error) return unavailable(format("{}: {}", folder, error.message()));
  while (true) {
    ASSIGN_OR_RETURN(Written removed, parts_.commit(RemoveJob{.job = job}));
    if (removed.version == 0) return ok_status();
  }
}

}  // namespace llm_dist::cluster
