#include "cluster/store/sqlite_commands.h"

#include <nlohmann/json.hpp>

#include "cluster/store/sqlite_batches.h"
#include "cluster/store/sqlite_queries.h"
#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr int64_t kItemsAtOnce = 1000;  // that one command removes: others wait for its transaction

// The first word of a trigger's message says what kind of refusal it is.
Status refusal(const Status& status) {
  if (status.code() != StatusCode::kFailedPrecondition) return status;
  const std::string& message = status.message();
  size_t colon = message.find(": ");
  if (colon == std::string::npos) return status;
  std::string rest = message.substr(colon + 2);
  return message.starts_with("fenced") ? aborted(rest) : failed_precondition(rest);
}

struct JobRow {
  JobState state;
  int64_t version;
  int64_t attempt;
};

Result<JobRow> find_job(Database& database, JobId id) {
  Statement row = database.prepare("SELECT state, version, attempt FROM jobs WHERE id = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(id).step());
  if (!found) return not_found(format("no such job: {}", job_name(id)));
  ASSIGN_OR_RETURN(JobState state, parse_job_state(row.text(0)));
  return JobRow{state, row.integer(1), row.integer(2)};
}

// The job as the writer believes it to be.
Result<JobRow> find_expected(Database& database, JobId id, int64_t expected_version, int64_t attempt) {
  ASSIGN_OR_RETURN(JobRow row, find_job(database, id));
  if (expected_version != 0 && row.version != expected_version) {
    return failed_precondition(
        format("{} has changed: version {}, not {}", job_name(id), row.version, expected_version));
  }
  if (attempt != 0 && row.attempt != attempt) {
    return failed_precondition(
        format("{} is at attempt {}: attempt {} is over", job_name(id), row.attempt, attempt));
  }
  return row;
}

// The answer that was given to the same key, if there was one.
Result<std::optional<Written>> find_answer(Database& database, const SubmitJob& submit) {
  const IdempotencyKey& asked = submit.idempotency;
  if (asked.key.empty()) return std::optional<Written>();
  ASSIGN_OR_RETURN(std::optional<GivenAnswer> given, query_answer(database, submit.project, asked.key));
  if (!given) return std::optional<Written>();
  if (given->body_hash != asked.body_hash) {
    return invalid_argument("the Idempotency-Key was used before, with another request");
  }
  return std::optional<Written>(Written{.id = given->job, .version = 1, .replayed = true});
}

// Whether the project may have it wait too. Never counts further than the limit.
Result<bool> has_room_to_wait(Database& database, const SubmitJob& submit) {
  if (submit.max_queued == 0) return true;
  int more = submit.batch ? submit.batch->num_replicas : 1;
  Statement row = database.prepare(
      "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE project = ? AND state = 'QUEUED' LIMIT ?)");
  row.bind(submit.project).bind(submit.max_queued);
  RETURN_IF_ERROR(row.step().status());
  return row.integer(0) + more <= submit.max_queued;
}

Result<JobId> insert_job(Database& database,
                         const Command& command,
                         const SubmitJob& submit,
                         JobKind kind,
                         const std::string& spec) {
  RETURN_IF_ERROR(
      database
          .prepare("INSERT INTO jobs (project, kind, spec, priority, state, retry_of, created_us, "
                   "updated_us, expires_us, epoch) VALUES (?, ?, ?, ?, 'QUEUED', ?, ?, ?, ?, ?)")
          .bind(submit.project)
          .bind(to_string(kind))
          .bind(spec)
          .bind(submit.priority)
          .bind(submit.retry_of)
          .bind(command.at_us)
          .bind(command.at_us)
          .bind(submit.expires_us)
          .bind(command.epoch)
          .run());
  return database.last_insert_id();
}

// What a batch has besides its job, other replicas among it.
Status insert_batch_of(Database& database, const Command& command, const SubmitJob& submit, JobId job) {
  const NewBatch& batch = *submit.batch;
  RETURN_IF_ERROR(insert_batch(database, command, job, batch));
  for (int i = 1; i < batch.num_replicas; ++i) {
    ASSIGN_OR_RETURN(JobId replica,
                     insert_job(database, command, submit, JobKind::kServe, batch.replica_spec));
    RETURN_IF_ERROR(insert_replica(database, command, replica, job));
  }
  return ok_status();
}

Outcome carry_out(Database& database, const Command& command, const SubmitJob& submit) {
  ASSIGN_OR_RETURN(std::optional<Written> answer, find_answer(database, submit));
  if (answer) return *answer;
  ASSIGN_OR_RETURN(bool has_room, has_room_to_wait(database, submit));
  if (!has_room) return Written{};
  if (submit.retry_of != 0) {
    ASSIGN_OR_RETURN(JobRow old, find_job(database, submit.retry_of));
    if (!is_terminal(old.state)) {
      return failed_precondition(format("{} has not ended: it is {}", job_name(submit.retry_of), old.state));
    }
  }
  ASSIGN_OR_RETURN(JobId id, insert_job(database, command, submit, submit.kind, submit.spec));
  if (submit.batch) RETURN_IF_ERROR(insert_batch_of(database, command, submit, id));
  if (!submit.idempotency.key.empty()) {
    RETURN_IF_ERROR(database.prepare("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?, ?)")
                        .bind(submit.project)
                        .bind(submit.idempotency.key)
                        .bind(submit.idempotency.body_hash)
                        .bind(id)
                        .bind(command.at_us)
                        .bind(command.epoch)
                        .run());
  }
  return Written{.id = id, .version = 1};
}

Status change_attempt(
    Database& database, const Command& command, JobId job, int64_t number, const AttemptChange& change) {
  std::string sql = "UPDATE attempts SET epoch = ?";
  if (change.state) sql += ", state = ?";
  if (change.state == AttemptState::kEnded) sql += ", ended_us = ?";
  if (change.handle) sql += ", handle = ?";
  if (change.endpoint) sql += ", endpoint = ?";
  if (change.reason) sql += ", reason = ?";
  if (change.exit_code) sql += ", exit_code = ?";
  Statement update = database.prepare(sql + " WHERE job = ? AND number = ?");
  update.bind(command.epoch);
  if (change.state) update.bind(to_string(*change.state));
  if (change.state == AttemptState::kEnded) update.bind(command.at_us);
  if (change.handle) update.bind(*change.handle);
  if (change.endpoint) update.bind(*change.endpoint);
  if (change.reason) update.bind(*change.reason);
  if (change.exit_code) update.bind(*change.exit_code);
  RETURN_IF_ERROR(update.bind(job).bind(number).run());
  if (database.num_changed() != 0) return ok_status();
  return not_found(format("{} has no attempt {}", job_name(job), number));
}

Status change_job(Database& database, const Command& command, const ChangeJob& change) {
  return database
      .prepare(
          "UPDATE jobs SET state = ?, intent = ?, reason = ?, message = ?, "
          "version = version + 1, updated_us = ?, epoch = ? WHERE id = ?")
      .bind(to_string(change.to))
      .bind(to_string(change.intent))
      .bind(change.reason)
      .bind(change.message)
      .bind(command.at_us)
      .bind(command.epoch)
      .bind(change.job)
      .run();
}

Outcome carry_out(Database& database, const Command& command, const ChangeJob& change) {
  ASSIGN_OR_RETURN(JobRow row, find_expected(database, change.job, change.expected_version, change.attempt));
  if (change.attempt_change) {
    RETURN_IF_ERROR(change_attempt(database, command, change.job, row.attempt, *change.attempt_change));
  }
  RETURN_IF_ERROR(change_job(database, command, change));
  return Written{.id = change.job, .version = row.version + 1};
}

Outcome carry_out(Database& database, const Command& command, const StartAttempt& start) {
  ASSIGN_OR_RETURN(JobRow row, find_expected(database, start.job, start.expected_version, 0));
  RETURN_IF_ERROR(
      database
          .prepare("UPDATE jobs SET state = 'STARTING', intent = '', reason = 'started', message = '', "
                   "attempt = attempt + 1, version = version + 1, updated_us = ?, epoch = ? "
                   "WHERE id = ?")
          .bind(command.at_us)
          .bind(command.epoch)
          .bind(start.job)
          .run());
  RETURN_IF_ERROR(
      database
          .prepare("INSERT INTO attempts (job, number, launcher, secret_hash, slots, slot_numbers, "
                   "started_us, epoch) VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
          .bind(start.job)
          .bind(row.attempt + 1)
          .bind(start.launcher)
          .bind(start.secret_hash)
          .bind(start.slots)
          .bind(nlohmann::json(start.slot_numbers).dump())
          .bind(command.at_us)
          .bind(command.epoch)
          .run());
  return Written{.id = start.job, .version = row.version + 1};
}

Outcome carry_out(Database& database, const Command& command, const ChangeAttempt& change) {
  ASSIGN_OR_RETURN(JobRow row, find_expected(database, change.job, 0, change.attempt));
  RETURN_IF_ERROR(change_attempt(database, command, change.job, change.attempt, change.change));
  return Written{.id = change.job, .version = row.version};
}

// failed_precondition: that job takes no items of this batch.
Status check_replica(Database& database, JobId replica, JobId batch) {
  Statement row = database.prepare("SELECT 1 FROM batch_replicas WHERE job = ? AND batch = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(replica).bind(batch).step());
  if (found) return ok_status();
  return failed_precondition(format("{} is no replica of {}", job_name(replica), batch_name(batch)));
}

Outcome carry_out(Database& database, const Command& command, const RecordItem& record) {
  JobId replica = record.replica == 0 ? record.job : record.replica;
  ASSIGN_OR_RETURN(JobRow speaker, find_expected(database, replica, 0, record.attempt));
  JobRow row = speaker;
  if (record.replica != 0) {
    RETURN_IF_ERROR(check_replica(database, record.replica, record.job));
    ASSIGN_OR_RETURN(row, find_job(database, record.job));
  }
  RETURN_IF_ERROR(record_item(database, command, record, row.attempt));
  return Written{.id = record.job, .version = row.version};
}

Outcome carry_out(Database& database, const Command& command, const CountDeaths& deaths) {
  ASSIGN_OR_RETURN(JobRow row, find_job(database, deaths.job));
  if (deaths.replica != 0) RETURN_IF_ERROR(check_replica(database, deaths.replica, deaths.job));
  RETURN_IF_ERROR(count_deaths(database, command, deaths, row.attempt));
  return Written{.id = deaths.job, .version = row.version};
}

Outcome carry_out(Database& database, const Command& command, const CloseBatch& close) {
  ASSIGN_OR_RETURN(JobRow row, find_expected(database, close.job, close.expected_version, 0));
  ChangeJob change{.job = close.job, .reason = close.reason, .message = close.message};
  if (close.to) {
    change.to = *close.to;
    RETURN_IF_ERROR(change_job(database, command, change));
  }
  RETURN_IF_ERROR(close_batch(database, command, close));
  return Written{.id = close.job, .version = row.version + (close.to ? 1 : 0)};
}

Outcome carry_out(Database& database, const Command& command, const RemoveJob& remove) {
  ASSIGN_OR_RETURN(JobRow row, find_job(database, remove.job));
  // Rows that go have no epoch to carry: the deletions check for themselves.
  const char* items =
      "DELETE FROM batch_items WHERE rowid IN (SELECT rowid FROM batch_items WHERE job = ? LIMIT ?) "
      "AND (SELECT epoch FROM writer) = ?";
  RETURN_IF_ERROR(database.prepare(items).bind(remove.job).bind(kItemsAtOnce).bind(command.epoch).run());
  if (database.num_changed() == kItemsAtOnce) return Written{.id = remove.job, .version = row.version};
  RETURN_IF_ERROR(database.prepare("DELETE FROM jobs WHERE id = ? AND (SELECT epoch FROM writer) = ?")
                      .bind(remove.job)
                      .bind(command.epoch)
                      .run());
  if (database.num_changed() == 0) return aborted("another coordinator owns the store");
  RETURN_IF_ERROR(database.prepare("DELETE FROM idempotency WHERE job = ?").bind(remove.job).run());
  return Written{.id = remove.job};
}

}  // namespace

Outcome carry_out(Database& database, const Command& command) {
  Outcome outcome =
      std::visit([&](const auto& body) { return carry_out(database, command, body); }, command.body);
  return outcome.ok() ? outcome : Outcome(refusal(outcome.status()));
}

}  // namespace llm_dist::cluster
