// Reading a store. Internal to this folder.
#pragma once

#include <vector>

#include "cluster/store/sqlite.h"
#include "cluster/store/store.h"

namespace llm_dist::cluster {

Result<Job> query_job(Database& database, JobId id);
Result<std::vector<Job>> query_jobs(Database& database, const JobFilter& filter);
Result<std::vector<Job>> query_replicas(Database& database, JobId batch);
Result<std::vector<Event>> query_events(Database& database, JobId job, int64_t after, int limit);
Result<std::vector<Attempt>> query_attempts(Database& database, JobId job);
Result<JobCounts> query_counts(Database& database);
Result<std::vector<Job>> query_waiting(Database& database, const WaitingFilter& filter);
Result<std::vector<HeldSlots>> query_held_slots(Database& database);
Result<std::vector<ProjectUsage>> query_projects(Database& database);
Result<std::optional<GivenAnswer>> query_answer(Database& database,
                                                const std::string& project,
                                                const std::string& key);
Result<std::vector<Job>> query_overdue(Database& database, Overdue what, int64_t at_us, int limit);

}  // namespace llm_dist::cluster
