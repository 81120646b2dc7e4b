#include "cluster/store/sqlite_queries.h"

#include <nlohmann/json.hpp>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

const std::string kJobColumns =
    "id, project, kind, spec, priority, state, intent, reason, message, version, attempt, retry_of, "
    "created_us, updated_us, expires_us, epoch, "
    "(SELECT batch FROM batch_replicas WHERE batch_replicas.job = jobs.id)";

const std::string kTurn = "created_us - priority * 600000000";  // as jobs_by_turn has it

// Attempts that hold slots, and whose they are.
const std::string kHeld =
    "attempts INDEXED BY attempts_open JOIN jobs ON jobs.id = attempts.job WHERE attempts.state <> 'ended'";

// The database's CHECK constraints allow no other word.
template <typename T>
T known(Result<T> value) {
  return value.value();
}
Intent parse_intent(const std::string& name) {
  return name == to_string(Intent::kSuspend) ? Intent::kSuspend : Intent::kNone;
}
AttemptState parse_attempt_state(const std::string& name) {
  for (AttemptState state : {AttemptState::kStarting, AttemptState::kRunning}) {
    if (name == to_string(state)) return state;
  }
  return AttemptState::kEnded;
}

std::vector<int> read_numbers(const std::string& array) {
  return nlohmann::json::parse(array).get<std::vector<int>>();
}

Job read_job(const Statement& row) {
  return {.id = row.integer(0),
          .project = row.text(1),
          .kind = known(parse_job_kind(row.text(2))),
          .spec = row.text(3),
          .priority = static_cast<int>(row.integer(4)),
          .state = known(parse_job_state(row.text(5))),
          .intent = parse_intent(row.text(6)),
          .reason = row.text(7),
          .message = row.text(8),
          .version = row.integer(9),
          .attempt = row.integer(10),
          .retry_of = row.integer(11),
          .replica_of = row.integer(16),
          .created_us = row.integer(12),
          .updated_us = row.integer(13),
          .expires_us = row.integer(14),
          .epoch = row.integer(15)};
}

// The jobs in one state (or any), newest first, by whichever index gives them in that order.
std::string one_state_query(const JobFilter& filter, bool by_state) {
  std::string sql = "SELECT " + kJobColumns + " FROM jobs WHERE true";
  if (filter.project) sql += " AND project = ?";
  if (by_state) sql += " AND state = ?";
  if (filter.kind) sql += " AND kind = ?";
  if (filter.before != 0) sql += " AND id < ?";
  return sql + " ORDER BY id DESC LIMIT ?";
}

void bind_filter(Statement& statement, const JobFilter& filter, const JobState* state) {
  if (filter.project) statement.bind(*filter.project);
  if (state != nullptr) statement.bind(to_string(*state));
  if (filter.kind) statement.bind(to_string(*filter.kind));
  if (filter.before != 0) statement.bind(filter.before);
  statement.bind(filter.limit);
}

}  // namespace

Result<Job> query_job(Database& database, JobId id) {
  Statement row = database.prepare("SELECT " + kJobColumns + " FROM jobs WHERE id = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(id).step());
  if (!found) return not_found(format("no such job: {}", job_name(id)));
  return read_job(row);
}

Result<std::vector<Job>> query_jobs(Database& database, const JobFilter& filter) {
  if (filter.states.empty()) {
    Statement rows = database.prepare(one_state_query(filter, false));
    bind_filter(rows, filter, nullptr);
    return read_all<Job>(rows, read_job);
  }
  // One ordered query a state, merged: `state IN (…)` would sort every match.
  std::string sql;
  for (size_t i = 0; i < filter.states.size(); ++i) {
    sql += (i == 0 ? "SELECT * FROM (" : " UNION ALL SELECT * FROM (") + one_state_query(filter, true) + ")";
  }
  Statement rows = database.prepare(sql + " ORDER BY id DESC LIMIT ?");
  for (const JobState& state : filter.states) bind_filter(rows, filter, &state);
  rows.bind(filter.limit);
  return read_all<Job>(rows, read_job);
}

Result<std::vector<Job>> query_replicas(Database& database, JobId batch) {
  Statement rows =
      database.prepare("SELECT " + kJobColumns +
                       " FROM jobs WHERE id IN (SELECT job FROM batch_replicas WHERE batch = ?) ORDER BY id");
  rows.bind(batch);
  return read_all<Job>(rows, read_job);
}

Result<std::vector<Event>> query_events(Database& database, JobId job, int64_t after, int limit) {
  Statement rows = database.prepare(
      "SELECT job, number, from_state, to_state, intent, reason, message, attempt, at_us, epoch FROM events "
      "WHERE job = ? AND number > ? ORDER BY number LIMIT ?");
  rows.bind(job).bind(after).bind(limit);
  return read_all<Event>(rows, [](const Statement& row) {
    Event event{.job = row.integer(0),
                .number = row.integer(1),
                .to = known(parse_job_state(row.text(3))),
                .intent = parse_intent(row.text(4)),
                .reason = row.text(5),
                .message = row.text(6),
                .attempt = row.integer(7),
                .at_us = row.integer(8),
                .epoch = row.integer(9)};
    if (!row.is_null(2)) event.from = known(parse_job_state(row.text(2)));
    return event;
  });
}

Result<std::vector<Attempt>> query_attempts(Database& database, JobId job) {
  Statement rows = database.prepare(
      "SELECT job, number, state, launcher, handle, endpoint, secret_hash, slots, reason, exit_code, "
      "started_us, ended_us, epoch, slot_numbers FROM attempts WHERE job = ? ORDER BY number");
  rows.bind(job);
  return read_all<Attempt>(rows, [](const Statement& row) {
    return Attempt{.job = row.integer(0),
                   .number = row.integer(1),
                   .state = parse_attempt_state(row.text(2)),
                   .launcher = row.text(3),
                   .handle = row.text(4),
                   .endpoint = row.text(5),
                   .secret_hash = row.text(6),
                   .slots = static_cast<int>(row.integer(7)),
                   .slot_numbers = read_numbers(row.text(13)),
                   .reason = row.text(8),
                   .exit_code = static_cast<int>(row.integer(9)),
                   .started_us = row.integer(10),
                   .ended_us = row.integer(11),
                   .epoch = row.integer(12)};
  });
}

// All jobs age alike, so that their order never changes and an index can hold it (jobs_by_turn).
Result<std::vector<Job>> query_waiting(Database& database, const WaitingFilter& filter) {
  std::string sql = "SELECT " + kJobColumns + " FROM jobs WHERE state = 'QUEUED'";
  const char* separator = " AND project NOT IN (?";
  for (size_t i = 0; i < filter.without_projects.size(); ++i) {
    sql += separator;
    separator = ", ?";
  }
  if (!filter.without_projects.empty()) sql += ")";
  // The index knows where to begin from the first condition only.
  if (filter.after != 0) {
    sql += " AND " + kTurn + " >= (SELECT " + kTurn + " FROM jobs WHERE id = ?) AND (" + kTurn +
           ", id) > (SELECT " + kTurn + ", id FROM jobs WHERE id = ?)";
  }
  Statement rows = database.prepare(sql + " ORDER BY " + kTurn + ", id LIMIT ?");
  for (const std::string& project : filter.without_projects) rows.bind(project);
  if (filter.after != 0) rows.bind(filter.after).bind(filter.after);
  rows.bind(filter.limit);
  return read_all<Job>(rows, read_job);
}

Result<std::vector<HeldSlots>> query_held_slots(Database& database) {
  Statement rows =
      database.prepare("SELECT job, project, slots, slot_numbers FROM " + kHeld + " ORDER BY job");
  return read_all<HeldSlots>(rows, [](const Statement& row) {
    return HeldSlots{.job = row.integer(0),
                     .project = row.text(1),
                     .slots = static_cast<int>(row.integer(2)),
                     .slot_numbers = read_numbers(row.text(3))};
  });
}

Result<std::vector<ProjectUsage>> query_projects(Database& database) {
  Statement rows = database.prepare(
      "SELECT project, sum(queued), sum(NOT queued), sum(slots) FROM ("
      "SELECT project, 1 AS queued, 0 AS slots FROM jobs WHERE state = 'QUEUED' UNION ALL "
      "SELECT project, 0, slots FROM " +
      kHeld + ") GROUP BY project ORDER BY project");
  return read_all<ProjectUsage>(rows, [](const Statement& row) {
    return ProjectUsage{.project = row.text(0),
                        .num_queued = row.integer(1),
                        .num_running = row.integer(2),
                        .num_slots = row.integer(3)};
  });
}

Result<std::optional<GivenAnswer>> query_answer(Database& database,
                                                const std::string& project,
                                                const std::string& key) {
  Statement row = database.prepare("SELECT body_hash, job FROM idempotency WHERE project = ? AND key = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(project).bind(key).step());
  if (!found) return std::optional<GivenAnswer>();
  return std::optional<GivenAnswer>({.body_hash = row.text(0), .job = row.integer(1)});
}

// Without statistics the planner would read every job in these states.
Result<std::vector<Job>> query_overdue(Database& database, Overdue what, int64_t at_us, int limit) {
  const char* waiting =
      " FROM jobs INDEXED BY jobs_by_expiry WHERE expires_us > 0 AND expires_us <= ? "
      "AND state IN ('QUEUED', 'SUSPENDED') ORDER BY expires_us LIMIT ?";
  const char* ended =
      " FROM jobs INDEXED BY jobs_by_end WHERE updated_us < ? "
      "AND state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED') "
      "AND NOT EXISTS (SELECT 1 FROM batches WHERE job = jobs.id AND closed = 0) ORDER BY updated_us LIMIT ?";
  Statement rows = database.prepare("SELECT " + kJobColumns + (what == Overdue::kWaiting ? waiting : ended));
  rows.bind(at_us).bind(limit);
  return read_all<Job>(rows, read_job);
}

Result<JobCounts> query_counts(Database& database) {
  Statement rows = database.prepare("SELECT state, count(*) FROM jobs GROUP BY state");
  JobCounts counts;
  while (true) {
    ASSIGN_OR_RETURN(bool more, rows.step());
    if (!more) return counts;
    counts.by_state[static_cast<size_t>(known(parse_job_state(rows.text(0))))] = rows.integer(1);
  }
}

}  // namespace llm_dist::cluster
