#include "cluster/store/sqlite_store.h"

#include <algorithm>
#include <mutex>
#include <random>

#include "cluster/store/location.h"
#include "cluster/store/sqlite_batches.h"
#include "cluster/store/sqlite_commands.h"
#include "cluster/store/sqlite_queries.h"
#include "cluster/store/sqlite_schema.h"
#include "src/base/format.h"
#include "src/base/log.h"

namespace llm_dist::cluster {
namespace {

// Between two tries to learn what became of a commit; doubles.
constexpr Duration kFirstPause = std::chrono::milliseconds(20);
constexpr Duration kLongestPause = std::chrono::seconds(5);

Result<std::unique_ptr<Database>> open_writer(const SqliteStoreOptions& options) {
  ASSIGN_OR_RETURN(auto database, Database::open({.path = options.path, .vfs = options.vfs}));
  RETURN_IF_ERROR(prepare_connection(*database).with_context(options.path));
  return database;
}

class SqliteStore : public Store, private BatchStore {
  template <typename Query>
  auto read(const Query& query) {
    std::lock_guard lock(reader_mutex_);
    return query(*reader_);
  }

 public:
  SqliteStore(SqliteStoreOptions options, std::unique_ptr<StoreLock> lock)
      : options_(std::move(options)), lock_(std::move(lock)), random_(std::random_device{}()) {}

  Status open();

  int64_t epoch() const override { return epoch_; }
  Status apply(std::span<Pending> batch) override;

  Result<Job> job(JobId id) override {
    return read([&](Database& database) { return query_job(database, id); });
  }
  Result<std::vector<Job>> jobs(const JobFilter& filter) override {
    return read([&](Database& database) { return query_jobs(database, filter); });
  }
  Result<std::vector<Event>> events(JobId job, int64_t after, int limit) override {
    return read([&](Database& database) { return query_events(database, job, after, limit); });
  }
  Result<std::vector<Attempt>> attempts(JobId job) override {
    return read([&](Database& database) { return query_attempts(database, job); });
  }
  Result<JobCounts> counts() override {
    return read([](Database& database) { return query_counts(database); });
  }
  Result<std::vector<Job>> waiting(const WaitingFilter& filter) override {
    return read([&](Database& database) { return query_waiting(database, filter); });
  }
  Result<std::vector<HeldSlots>> held_slots() override {
    return read([](Database& database) { return query_held_slots(database); });
  }
  Result<std::vector<ProjectUsage>> projects() override {
    return read([](Database& database) { return query_projects(database); });
  }
  Result<std::optional<GivenAnswer>> answer_to(const std::string& project, const std::string& key) override {
    return read([&](Database& database) { return query_answer(database, project, key); });
  }
  Result<std::vector<Job>> overdue(Overdue what, int64_t at_us, int limit) override {
    return read([&](Database& database) { return query_overdue(database, what, at_us, limit); });
  }
  BatchStore& batches() override { return *this; }

  Result<StoredFile> file(FileId id) override {
    return read([&](Database& database) { return query_file(database, id); });
  }
  Result<std::vector<StoredFile>> files(const FileFilter& filter) override {
    return read([&](Database& database) { return query_files(database, filter); });
  }
  Result<std::vector<std::string>> contents() override {
    return read([](Database& database) { return query_contents(database); });
  }
  Result<Batch> batch(JobId job) override {
    return read([&](Database& database) { return query_batch(database, job); });
  }
  Result<std::vector<Batch>> open_batches() override {
    return read([](Database& database) { return query_open_batches(database); });
  }
  Result<std::vector<Job>> replicas(JobId batch) override {
    return read([&](Database& database) { return query_replicas(database, batch); });
  }
  Result<int64_t> progress_attempt(JobId job) override {
    return read([&](Database& database) { return query_progress_attempt(database, job); });
  }
  Result<std::vector<ItemRecord>> items(JobId job, int64_t after, size_t enough_bytes) override {
    return read([&](Database& database) { return query_items(database, job, after, enough_bytes); });
  }
  Result<std::vector<ItemRecord>> item_marks(JobId job) override {
    return read([&](Database& database) { return query_item_marks(database, job); });
  }

 private:
  std::string next_batch_name();
  Status begin_batch(const std::string& name);
  Status carry_out_each(std::span<Pending> batch);
  Status rolled_back(const Status& cause);
  // After a commit that failed: ok when the batch was written after all, and durably. It tries until it
  // knows.
  Status resolve(const std::string& name, const Status& cause);
  // An error: not known yet. `written` is what the tries before have found.
  Status look_up(const std::string& name, bool& written);
  Status write_log_back();
  Status reopen_writer();
  Result<std::string> last_batch();

  const SqliteStoreOptions options_;
  const std::unique_ptr<StoreLock> lock_;
  int64_t epoch_ = 0;
  std::mutex writer_mutex_;
  std::unique_ptr<Database> writer_;  // null after a failure that reopening did not mend
  std::mt19937_64 random_;
  std::mutex reader_mutex_;
  std::unique_ptr<Database> reader_;
};

Status SqliteStore::open() {
  ASSIGN_OR_RETURN(writer_, open_writer(options_));
  RETURN_IF_ERROR(migrate(*writer_).with_context(options_.path));
  ASSIGN_OR_RETURN(epoch_, take_epoch(*writer_));
  ASSIGN_OR_RETURN(reader_, open_writer(options_));
  return reader_->execute("PRAGMA query_only = ON");
}

std::string SqliteStore::next_batch_name() { return format("{}-{}-{}", epoch_, random_(), random_()); }

Status SqliteStore::begin_batch(const std::string& name) {
  RETURN_IF_ERROR(writer_->execute("BEGIN IMMEDIATE"));
  RETURN_IF_ERROR(
      writer_->prepare("UPDATE writer SET last_batch = ? WHERE epoch = ?").bind(name).bind(epoch_).run());
  return writer_->num_changed() == 1 ? ok_status() : aborted("another coordinator owns the store");
}

Status SqliteStore::carry_out_each(std::span<Pending> batch) {
  for (Pending& pending : batch) {
    RETURN_IF_ERROR(writer_->execute("SAVEPOINT command"));
    pending.outcome = carry_out(*writer_, pending.command);
    // A full disk or a read error may have ended the whole transaction.
    if (!writer_->in_transaction()) return pending.outcome.status();
    if (!pending.outcome.ok()) RETURN_IF_ERROR(writer_->execute("ROLLBACK TO command"));
    RETURN_IF_ERROR(writer_->execute("RELEASE command"));
  }
  return ok_status();
}

Status SqliteStore::rolled_back(const Status& cause) {
  if (!writer_->in_transaction()) return cause;
  Status undone = writer_->execute("ROLLBACK");
  if (!undone.ok()) writer_.reset();
  return cause;
}

Result<std::string> SqliteStore::last_batch() {
  Statement row = writer_->prepare("SELECT last_batch FROM writer");
  RETURN_IF_ERROR(row.step().status());
  return row.text(0);
}

Status SqliteStore::reopen_writer() {
  writer_.reset();
  ASSIGN_OR_RETURN(writer_, open_writer(options_));
  return ok_status();
}

// Copies the log into the database and empties it. The first column of the answer: something was in the way.
Status SqliteStore::write_log_back() {
  Statement checkpoint = writer_->prepare("PRAGMA wal_checkpoint(TRUNCATE)");
  ASSIGN_OR_RETURN(bool row, checkpoint.step());
  if (row && checkpoint.integer(0) == 0) return ok_status();
  return unavailable("a checkpoint could not be completed: the store is being read");
}

Status SqliteStore::look_up(const std::string& name, bool& written) {
  RETURN_IF_ERROR(reopen_writer());
  ASSIGN_OR_RETURN(std::string last, last_batch());
  // What one sync failed to write another need not find again: only a checkpoint copies it to where it lasts.
  RETURN_IF_ERROR(write_log_back());
  written = written || last == name;
  // The old log, with or without the batch, may still be what the disk holds: the next commit begins it anew,
  // and only then it is gone.
  RETURN_IF_ERROR(begin_batch(next_batch_name()));
  return writer_->execute("COMMIT");
}

Status SqliteStore::resolve(const std::string& name, const Status& cause) {
  // The frame that makes a batch count is written last: where the disk was full before it, nothing counts.
  if (cause.code() == StatusCode::kResourceExhausted) return cause;
  log_warning("the store's commit failed, its outcome is looked up: {}", cause.message());
  const Deadline patience = Deadline::after(options_.longest_doubt);
  bool written = false;
  for (Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    Status known = look_up(name, written);
    if (known.ok()) return written ? known : cause;
    // It may be known to the coordinator that took over; this one carries nothing out any more.
    if (known.code() == StatusCode::kAborted || patience.expired()) return known;
    log_error("what became of a commit is not known yet, and nobody is answered: {}", known.message());
    options_.pause(pause);
  }
}

Status SqliteStore::apply(std::span<Pending> batch) {
  std::lock_guard lock(writer_mutex_);
  Status status = writer_ ? ok_status() : reopen_writer();
  std::string name = next_batch_name();
  if (status.ok()) {
    status = begin_batch(name);
    if (status.ok()) status = carry_out_each(batch);
    if (!status.ok()) {
      status = rolled_back(status);
    } else if (Status committed = writer_->execute("COMMIT"); !committed.ok()) {
      status = resolve(name, committed);
      if (!status.ok() && writer_ && writer_->in_transaction()) writer_.reset();
    }
  }
  if (status.ok()) return status;
  for (Pending& pending : batch) pending.outcome = status;
  return status;
}

}  // namespace

Result<std::unique_ptr<Store>> open_sqlite_store(const SqliteStoreOptions& options) {
  std::unique_ptr<StoreLock> lock;
  if (options.vfs.empty()) {
    RETURN_IF_ERROR(check_store_location(options.path));
    ASSIGN_OR_RETURN(lock, StoreLock::take(options.path));
  }
  auto store = std::make_unique<SqliteStore>(options, std::move(lock));
  RETURN_IF_ERROR(store->open());
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace llm_dist::cluster
