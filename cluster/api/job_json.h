// Jobs, events and attempts as the API shows them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/attempt_plan.h"
#include "cluster/store/job.h"

namespace llm_dist::cluster {

std::string render_job(const Job& job);
// The job as it was when it was submitted: what its submission answered.
std::string render_submitted(const Job& job);
std::string render_job_list(const std::vector<Job>& jobs, bool has_more);
std::string render_event(const Event& event);
std::string render_event_list(const std::vector<Event>& events, bool has_more);

// What stands in no row of an attempt.
struct AttemptExtras {
  std::string api_key{};  // what its replica asks of its clients, shown while it serves
  std::optional<AttemptProgress> progress{};
};
std::string render_attempts(const std::vector<Attempt>& attempts,
                            const std::function<AttemptExtras(const Attempt&)>& extras_of);

// The state that OpenAI's batch object shows for a job's.
std::string_view batch_status(JobState state);

}  // namespace llm_dist::cluster
