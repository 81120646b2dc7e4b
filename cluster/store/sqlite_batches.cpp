#include "cluster/store/sqlite_batches.h"

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

const std::string kFileColumns = "id, project, purpose, filename, bytes, content, created_us";
const std::string kBatchColumns =
    "job, input_file, completion_window, metadata, total, completed, failed, progress_attempt, closed, "
    "output_file, error_file, closed_us";

// The database's CHECK constraints allow no other word.
ItemOutcome parse_outcome(const std::string& name) {
  for (ItemOutcome outcome : {ItemOutcome::kCompleted, ItemOutcome::kFailed}) {
    if (name == to_string(outcome)) return outcome;
  }
  return ItemOutcome::kOpen;
}

StoredFile read_file(const Statement& row) {
  return {.id = row.integer(0),
          .project = row.text(1),
          .purpose = parse_file_purpose(row.text(2)).value(),
          .filename = row.text(3),
          .bytes = row.integer(4),
          .content = row.text(5),
          .created_us = row.integer(6)};
}

Batch read_batch(const Statement& row) {
  return {.job = row.integer(0),
          .input_file = row.integer(1),
          .completion_window = row.text(2),
          .metadata = row.text(3),
          .total = row.integer(4),
          .completed = row.integer(5),
          .failed = row.integer(6),
          .progress_attempt = row.integer(7),
          .closed = row.integer(8) != 0,
          .output_file = row.integer(9),
          .error_file = row.integer(10),
          .closed_us = row.integer(11)};
}

}  // namespace

Result<StoredFile> query_file(Database& database, FileId id) {
  Statement row = database.prepare("SELECT " + kFileColumns + " FROM files WHERE id = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(id).step());
  if (!found) return not_found(format("no such file: {}", file_name(id)));
  return read_file(row);
}

Result<std::vector<StoredFile>> query_files(Database& database, const FileFilter& filter) {
  std::string sql = "SELECT " + kFileColumns + " FROM files WHERE true";
  if (filter.project) sql += " AND project = ?";
  if (filter.purpose) sql += " AND purpose = ?";
  if (filter.after != 0) sql += filter.newest_first ? " AND id < ?" : " AND id > ?";
  Statement rows =
      database.prepare(sql + " ORDER BY id " + (filter.newest_first ? "DESC" : "ASC") + " LIMIT ?");
  if (filter.project) rows.bind(*filter.project);
  if (filter.purpose) rows.bind(to_string(*filter.purpose));
  if (filter.after != 0) rows.bind(filter.after);
  rows.bind(filter.limit);
  return read_all<StoredFile>(rows, read_file);
}

Result<std::vector<std::string>> query_contents(Database& database) {
  Statement rows = database.prepare("SELECT content FROM files");
  return read_all<std::string>(rows, [](const Statement& row) { return row.text(0); });
}

Result<Batch> query_batch(Database& database, JobId job) {
  Statement row = database.prepare("SELECT " + kBatchColumns + " FROM batches WHERE job = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(job).step());
  if (!found) return not_found(format("no such batch: {}", batch_name(job)));
  return read_batch(row);
}

Result<std::vector<Batch>> query_open_batches(Database& database) {
  Statement rows =
      database.prepare("SELECT " + kBatchColumns + " FROM batches WHERE closed = 0 ORDER BY job");
  return read_all<Batch>(rows, read_batch);
}

Result<std::vector<ItemRecord>> query_items(Database& database,
                                            JobId job,
                                            int64_t after,
                                            size_t enough_bytes) {
  Statement rows = database.prepare(
      "SELECT number, outcome, deaths, line FROM batch_items WHERE job = ? AND number > ? AND outcome <> '' "
      "ORDER BY number");
  rows.bind(job).bind(after);
  std::vector<ItemRecord> items;
  for (size_t bytes = 0; bytes < enough_bytes; bytes += items.back().line.size()) {
    ASSIGN_OR_RETURN(bool more, rows.step());
    if (!more) break;
    items.push_back({.number = rows.integer(0),
                     .outcome = parse_outcome(rows.text(1)),
                     .deaths = static_cast<int>(rows.integer(2)),
                     .line = rows.text(3)});
  }
  return items;
}

Result<std::vector<ItemRecord>> query_item_marks(Database& database, JobId job) {
  Statement rows = database.prepare("SELECT number, outcome, deaths FROM batch_items WHERE job = ?");
  rows.bind(job);
  return read_all<ItemRecord>(rows, [](const Statement& row) {
    return ItemRecord{.number = row.integer(0),
                      .outcome = parse_outcome(row.text(1)),
                      .deaths = static_cast<int>(row.integer(2))};
  });
}

Result<int64_t> query_progress_attempt(Database& database, JobId job) {
  Statement row = database.prepare(
      "SELECT progress_attempt FROM batches WHERE job = ? UNION ALL "
      "SELECT progress_attempt FROM batch_replicas WHERE job = ?");
  ASSIGN_OR_RETURN(bool found, row.bind(job).bind(job).step());
  return found ? row.integer(0) : 0;
}

Status insert_replica(Database& database, const Command& command, JobId job, JobId batch) {
  return database.prepare("INSERT INTO batch_replicas (job, batch, epoch) VALUES (?, ?, ?)")
      .bind(job)
      .bind(batch)
      .bind(command.epoch)
      .run();
}

Status insert_batch(Database& database, const Command& command, JobId job, const NewBatch& batch) {
  ASSIGN_OR_RETURN(StoredFile input, query_file(database, batch.input_file));
  return database
      .prepare(
          "INSERT INTO batches (job, input_file, completion_window, metadata, total, epoch) "
          "VALUES (?, ?, ?, ?, ?, ?)")
      .bind(job)
      .bind(input.id)
      .bind(batch.completion_window)
      .bind(batch.metadata)
      .bind(batch.total)
      .bind(command.epoch)
      .run();
}

Outcome carry_out(Database& database, const Command& command, const AddFile& add) {
  RETURN_IF_ERROR(
      database
          .prepare("INSERT INTO files (project, purpose, filename, bytes, content, created_us, epoch) "
                   "VALUES (?, ?, ?, ?, ?, ?, ?)")
          .bind(add.project)
          .bind(to_string(add.purpose))
          .bind(add.filename)
          .bind(add.bytes)
          .bind(add.content)
          .bind(command.at_us)
          .bind(command.epoch)
          .run());
  return Written{.id = database.last_insert_id()};
}

Outcome carry_out(Database& database, const Command& command, const DeleteFile& remove) {
  ASSIGN_OR_RETURN(StoredFile file, query_file(database, remove.file));
  // A row that goes has no epoch to carry: the deletion checks for itself.
  RETURN_IF_ERROR(database.prepare("DELETE FROM files WHERE id = ? AND (SELECT epoch FROM writer) = ?")
                      .bind(file.id)
                      .bind(command.epoch)
                      .run());
  if (database.num_changed() == 0) return aborted("another coordinator owns the store");
  return Written{.id = file.id};
}

namespace {

// Items were settled, in an attempt of the batch's own replica (0) or of another one.
Status count_progress(Database& database,
                      const Command& command,
                      JobId job,
                      int64_t attempt,
                      JobId replica,
                      int64_t replica_attempt,
                      const char* outcome,
                      int64_t num_items) {
  RETURN_IF_ERROR(
      database
          .prepare(
              format("UPDATE batches SET {} = {} + ?, progress_attempt = max(progress_attempt, ?), epoch = ? "
                     "WHERE job = ?",
                     outcome,
                     outcome))
          .bind(num_items)
          .bind(replica == 0 ? replica_attempt : attempt)
          .bind(command.epoch)
          .bind(job)
          .run());
  if (replica == 0) return ok_status();
  return database
      .prepare(
          "UPDATE batch_replicas SET progress_attempt = max(progress_attempt, ?), epoch = ? WHERE job = ?")
      .bind(replica_attempt)
      .bind(command.epoch)
      .bind(replica)
      .run();
}

// One more death of the item, unless this very attempt was counted last.
Status count_death(Database& database,
                   const Command& command,
                   const CountDeaths& deaths,
                   const CountDeaths::Item& item,
                   int64_t attempt) {
  return database
      .prepare(
          "INSERT INTO batch_items (job, number, custom_id, deaths, death_replica, death_attempt, attempt, "
          "at_us, epoch) VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT (job, number) DO UPDATE SET "
          "deaths = deaths + 1, death_replica = excluded.death_replica, "
          "death_attempt = excluded.death_attempt, "
          "attempt = excluded.attempt, at_us = excluded.at_us, epoch = excluded.epoch "
          "WHERE outcome = '' AND "
          "(death_replica <> excluded.death_replica OR death_attempt < excluded.death_attempt)")
      .bind(deaths.job)
      .bind(item.number)
      .bind(item.custom_id)
      .bind(deaths.replica)
      .bind(deaths.attempt)
      .bind(attempt)
      .bind(command.at_us)
      .bind(command.epoch)
      .run();
}

}  // namespace

Status record_item(Database& database, const Command& command, const RecordItem& record, int64_t attempt) {
  const char* outcome = record.completed ? "completed" : "failed";
  RETURN_IF_ERROR(
      database
          .prepare("INSERT INTO batch_items (job, number, custom_id, outcome, attempt, line, at_us, epoch) "
                   "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (job, number) DO UPDATE SET "
                   "outcome = excluded.outcome, attempt = excluded.attempt, line = excluded.line, "
                   "at_us = excluded.at_us, epoch = excluded.epoch")
          .bind(record.job)
          .bind(record.number)
          .bind(record.custom_id)
          .bind(outcome)
          .bind(attempt)
          .bind(record.line)
          .bind(command.at_us)
          .bind(command.epoch)
          .run());
  return count_progress(database, command, record.job, attempt, record.replica, record.attempt, outcome, 1);
}

Status count_deaths(Database& database, const Command& command, const CountDeaths& deaths, int64_t attempt) {
  int64_t num_quarantined = 0;
  for (const CountDeaths::Item& item : deaths.items) {
    RETURN_IF_ERROR(count_death(database, command, deaths, item, attempt));
    RETURN_IF_ERROR(database
                        .prepare("UPDATE batch_items SET outcome = 'failed', line = ?, at_us = ?, epoch = ? "
                                 "WHERE job = ? AND number = ? AND outcome = '' AND deaths >= ?")
                        .bind(item.line)
                        .bind(command.at_us)
                        .bind(command.epoch)
                        .bind(deaths.job)
                        .bind(item.number)
                        .bind(deaths.max_deaths)
                        .run());
    num_quarantined += database.num_changed();
  }
  if (num_quarantined == 0) return ok_status();
  return count_progress(
      database, command, deaths.job, attempt, deaths.replica, deaths.attempt, "failed", num_quarantined);
}

Status close_batch(Database& database, const Command& command, const CloseBatch& close) {
  int64_t ids[2] = {0, 0};
  const std::optional<AddFile>* const files[2] = {&close.output, &close.errors};
  for (int i = 0; i < 2; ++i) {
    if (!*files[i]) continue;
    ASSIGN_OR_RETURN(Written added, carry_out(database, command, **files[i]));
    ids[i] = added.id;
  }
  return database
      .prepare(
          "UPDATE batches SET closed = 1, output_file = ?, error_file = ?, failed = failed + ?, "
          "closed_us = ?, epoch = ? WHERE job = ?")
      .bind(ids[0])
      .bind(ids[1])
      .bind(close.num_expired)
      .bind(command.at_us)
      .bind(command.epoch)
      .bind(close.job)
      .run();
}

}  // namespace llm_dist::cluster
