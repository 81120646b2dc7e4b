#include "cluster/api/quota_reply.h"

#include "cluster/job_spec.h"
#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr int kRetryAfterSeconds = 10;

}  // namespace

std::optional<ApiError> apply_quota(SubmitJob& job, const Catalogue& catalogue) {
  ProjectQuota quota = catalogue.quota(job.project);
  job.max_queued = quota.max_queued_jobs;
  int ranks = read_job_spec(job.spec).num_ranks();
  if (quota.max_slots != 0 && ranks > quota.max_slots) {
    return ApiError{.status = 403,
                    .message = format("tp × pp = {} ranks, and project '{}' may have {} slots: ask for fewer "
                                      "ranks, or the administrator for a larger max_slots",
                                      ranks,
                                      job.project,
                                      quota.max_slots),
                    .param = "tp",
                    .code = "quota_too_small"};
  }
  int jobs = job.batch ? job.batch->num_replicas : 1;
  if (quota.max_queued_jobs != 0 && jobs > quota.max_queued_jobs) {
    return ApiError{
        .status = 403,
        .message = format("{} replicas are as many jobs, and project '{}' may have {} queued: ask "
                          "for fewer, or the administrator for a larger max_queued_jobs",
                          jobs,
                          job.project,
                          quota.max_queued_jobs),
        .param = "replicas",
        .code = "quota_too_small"};
  }
  return std::nullopt;
}

http::Response queue_full_reply(const std::string& project, int max_queued) {
  return error_reply(
      {.status = 429,
       .message = format("project '{}' may have {} jobs queued: try again when some of them have "
                         "started, cancel some (GET /v1/jobs?project={}&state=QUEUED lists "
                         "them), or ask the administrator for a larger max_queued_jobs",
                         project,
                         max_queued,
                         project),
       .code = "quota_exceeded",
       .retry_after_s = kRetryAfterSeconds});
}

}  // namespace llm_dist::cluster
