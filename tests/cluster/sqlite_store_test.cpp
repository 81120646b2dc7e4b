// What only the SQLite store promises: its file, its schema, its locks.
#include "cluster/store/sqlite_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "cluster/store/location.h"
#include "cluster/store/migrations.h"
#include "cluster/store/sqlite.h"
#include "tests/cluster/store_fixture.h"

namespace llm_dist::cluster {
namespace {

using testing::a_job;
using testing::apply_one;

class RawDatabase {
 public:
  explicit RawDatabase(const std::string& path) {
    EXPECT_EQ(sqlite3_open(path.c_str(), &database_), SQLITE_OK);
  }
  ~RawDatabase() { sqlite3_close(database_); }
  RawDatabase(const RawDatabase&) = delete;
  RawDatabase& operator=(const RawDatabase&) = delete;

  // The error, or "".
  std::string run(const std::string& sql) {
    rows.clear();
    char* error = nullptr;
    sqlite3_exec(
        database_,
        sql.c_str(),
        [](void* self, int columns, char** values, char**) {
          std::string row;
          for (int i = 0; i < columns; ++i)
            row += (i == 0 ? "" : "|") + std::string(values[i] ? values[i] : "NULL");
          static_cast<RawDatabase*>(self)->rows.push_back(row);
          return 0;
        },
        this,
        &error);
    std::string text = error == nullptr ? "" : error;
    sqlite3_free(error);
    return text;
  }
  std::vector<std::string> rows;

 private:
  sqlite3* database_ = nullptr;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(SqliteStore, OneCoordinatorAtATime) {
  testing::TemporaryFolder folder;
  auto first = open_sqlite_store({.path = folder.file("s")});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(open_sqlite_store({.path = folder.file("s")}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(StoreLock::is_held(folder.file("s")));
  first.value().reset();
  EXPECT_FALSE(StoreLock::is_held(folder.file("s")));
  EXPECT_TRUE(open_sqlite_store({.path = folder.file("s")}).ok());
}

TEST(SqliteStore, RefusesANewerSchema) {
  testing::TemporaryFolder folder;
  ASSERT_TRUE(open_sqlite_store({.path = folder.file("s")}).ok());
  RawDatabase(folder.file("s")).run("INSERT INTO schema VALUES (1000)");
  Status status = open_sqlite_store({.path = folder.file("s")}).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("1000"), std::string::npos) << status.message();
}

TEST(SqliteStore, RefusesFilesThatAreNoStore) {
  testing::TemporaryFolder folder;
  RawDatabase(folder.file("other")).run("CREATE TABLE t (x)");
  EXPECT_EQ(open_sqlite_store({.path = folder.file("other")}).status().code(), StatusCode::kDataLoss);
  std::ofstream(folder.file("text")) << std::string(5000, 'x');
  EXPECT_EQ(open_sqlite_store({.path = folder.file("text")}).status().code(), StatusCode::kDataLoss);
}

TEST(SqliteStore, AnOldStoreIsMigrated) {
  testing::TemporaryFolder folder;
  std::string dump = contents(LLM_DIST_SOURCE_DIR "/tests/cluster/store_v1.sql");
  ASSERT_FALSE(dump.empty());
  ASSERT_EQ(RawDatabase(folder.file("s")).run(dump), "");
  auto opened = open_sqlite_store({.path = folder.file("s")});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  Store& store = **opened;
  EXPECT_EQ(store.epoch(), 4);
  EXPECT_EQ(store.jobs({}).value().size(), 3u);
  EXPECT_EQ(store.job(2).value().state, JobState::kCancelled);
  EXPECT_EQ(store.events(2, 0, 10).value().size(), 3u);
  EXPECT_EQ(apply_one(store, a_job("old-key", "old-hash")).value().id, 1);
  EXPECT_EQ(apply_one(store, a_job()).value().id, 4);
  RawDatabase raw(folder.file("s"));
  EXPECT_EQ(raw.run("SELECT max(version) FROM schema; PRAGMA integrity_check"), "");
  EXPECT_EQ(raw.rows, (std::vector<std::string>{std::to_string(sqlite_migrations().size()), "ok"}));
}

TEST(SqliteStore, AttemptsThatRanBeforeSlotsHadNumbersGetSome) {
  testing::TemporaryFolder folder;
  RawDatabase raw(folder.file("s"));
  std::span<const char* const> migrations = sqlite_migrations();
  size_t version = 0;
  ASSERT_EQ(raw.run("CREATE TABLE schema (version INTEGER PRIMARY KEY)"), "");
  for (const char* migration : migrations) {
    if (std::string(migration).find("slot_numbers") != std::string::npos) break;
    ASSERT_EQ(raw.run(migration), "");
    ASSERT_EQ(raw.run("INSERT INTO schema VALUES (" + std::to_string(++version) + ")"), "");
  }
  for (const auto& [job, slots] : std::map<int, int>{{1, 2}, {2, 1}, {3, 3}}) {
    std::string id = std::to_string(job);
    ASSERT_EQ(
        raw.run("INSERT INTO jobs (project, kind, spec, priority, state, created_us, updated_us, epoch) "
                "VALUES ('p', 'serve', '{}', 0, 'QUEUED', 1, 1, 0)"),
        "");
    ASSERT_EQ(raw.run("UPDATE jobs SET state='STARTING', attempt=1, version=2 WHERE id=" + id), "");
    ASSERT_EQ(raw.run("INSERT INTO attempts (job, number, launcher, slots, started_us, epoch) VALUES (" + id +
                      ", 1, 'l', " + std::to_string(slots) + ", 1, 0)"),
              "");
  }
  ASSERT_EQ(raw.run("UPDATE attempts SET state='ended' WHERE job=2; UPDATE writer SET epoch = 7"), "");
  auto store = std::move(open_sqlite_store({.path = folder.file("s")})).value();
  std::vector<HeldSlots> held = store->held_slots().value();
  ASSERT_EQ(held.size(), 2u);
  EXPECT_EQ(held[0].slot_numbers, (std::vector<int>{0, 1}));
  EXPECT_EQ(held[1].slot_numbers, (std::vector<int>{2, 3, 4}));
  EXPECT_TRUE(store->attempts(2).value().at(0).slot_numbers.empty());
}

TEST(SqliteStore, TheDatabaseHoldsTheSameTransitions) {
  testing::TemporaryFolder folder;
  ASSERT_TRUE(open_sqlite_store({.path = folder.file("s")}).ok());
  RawDatabase raw(folder.file("s"));
  raw.run("SELECT * FROM transitions");
  std::set<std::string> expected;
  for (const Transition& t : transitions()) {
    expected.insert(std::string(to_string(t.from)) + "|" + std::string(to_string(t.to)));
  }
  EXPECT_EQ(std::set<std::string>(raw.rows.begin(), raw.rows.end()), expected);
}

// Whoever writes the file by hand meets the same rules.
TEST(SqliteStore, TheDatabaseItselfRefuses) {
  testing::TemporaryFolder folder;
  {
    auto store = std::move(open_sqlite_store({.path = folder.file("s")})).value();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(apply_one(*store, a_job()).ok());
    ASSERT_TRUE(apply_one(*store, ChangeJob{.job = 1, .to = JobState::kFailed}).ok());
  }
  RawDatabase raw(folder.file("s"));
  const std::pair<const char*, const char*> kRefused[] = {
      {"UPDATE jobs SET state='QUEUED', version=3 WHERE id=1", "terminal"},
      {"UPDATE jobs SET message='x', version=3 WHERE id=1", "terminal"},
      {"UPDATE jobs SET state='RUNNING', version=2 WHERE id=2", "transition"},
      {"UPDATE jobs SET state='FAILED' WHERE id=2", "version"},
      {"UPDATE jobs SET state='FAILED', version=2, epoch=0 WHERE id=2", "fenced"},
      {"UPDATE jobs SET spec='{}', version=2 WHERE id=2", "transition"},
      {"UPDATE jobs SET state='LOST', version=2 WHERE id=2", "transition"},
      {"DELETE FROM jobs WHERE id=2", "transition"},
      {"UPDATE events SET to_state='QUEUED'", "terminal"},
      {"DELETE FROM events WHERE job=2", "terminal"},
      {"INSERT INTO attempts (job, number, launcher, slots, started_us, epoch) VALUES (2, 1, 'l', 1, 1, 1)",
       "transition"},
      {"UPDATE writer SET epoch = 0", "fenced"},
      {"DELETE FROM writer", "fenced"},
  };
  for (const auto& [sql, word] : kRefused)
    EXPECT_EQ(raw.run(sql).find(word), 0u) << sql << ": " << raw.run(sql);
}

TEST(SqliteStore, TheDatabaseItselfGuardsBatches) {
  testing::TemporaryFolder folder;
  {
    auto store = std::move(open_sqlite_store({.path = folder.file("s")})).value();
    FileId file = apply_one(*store, AddFile{.filename = "f", .content = "c"}).value().id;
    SubmitJob submit = a_job();
    submit.kind = JobKind::kBatchInference;
    submit.batch = NewBatch{file, "24h", "null", 3};
    JobId id = apply_one(*store, submit).value().id;
    ASSERT_TRUE(apply_one(*store, a_job()).ok());
    ASSERT_TRUE(apply_one(*store, StartAttempt{.job = id, .slots = 1}).ok());
    ASSERT_TRUE(apply_one(*store, testing::to_state(id, JobState::kRunning)).ok());
    ASSERT_TRUE(apply_one(*store, RecordItem{id, 1, 1, "a", true, "line"}).ok());
    ASSERT_TRUE(apply_one(*store, CountDeaths{id, 1, 2, {{2, "b", "q"}}}).ok());
  }
  RawDatabase raw(folder.file("s"));
  const std::string item = "INSERT INTO batch_items (job, number, custom_id, attempt, at_us, epoch) VALUES ";
  const std::pair<std::string, const char*> kRefused[] = {
      {"UPDATE batch_items SET line='other' WHERE number=1", "terminal"},
      {"UPDATE batch_items SET outcome='' WHERE number=1", "terminal"},
      {"UPDATE batch_items SET outcome='failed', epoch=0 WHERE number=2", "fenced"},
      {"UPDATE batch_items SET custom_id='c' WHERE number=2", "transition"},
      {"DELETE FROM batch_items WHERE number=1", "terminal"},
      {item + "(1, 3, 'c', 1, 1, 0)", "fenced"},
      {item + "(1, 3, 'c', 2, 1, 1)", "transition"},
      {item + "(1, 3, 'a', 1, 1, 1)", "UNIQUE"},
      {item + "(1, 1, 'c', 1, 1, 1)", "UNIQUE"},
      {"UPDATE batches SET closed=1", "transition"},
      {"UPDATE batches SET total=9", "transition"},
      {"UPDATE batches SET completed=4", "CHECK"},
      {"UPDATE batches SET epoch=0", "fenced"},
      {"DELETE FROM batches", "transition"},
      {"INSERT INTO batches (job, input_file, completion_window, metadata, total, epoch) "
       "VALUES (2, 1, '24h', 'null', 1, 1)",
       "transition"},
      {"UPDATE files SET filename='g'", "terminal"},
      {"DELETE FROM files", "transition"},
  };
  for (const auto& [sql, word] : kRefused)
    EXPECT_EQ(raw.run(sql).find(word), 0u) << sql << ": " << raw.run(sql);
}

TEST(SqliteStore, IdsAreNotUsedAgain) {
  testing::TemporaryFolder folder;
  {
    auto store = std::move(open_sqlite_store({.path = folder.file("s")})).value();
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(apply_one(*store, a_job()).ok());
    ASSERT_TRUE(apply_one(*store, ChangeJob{.job = 3, .to = JobState::kFailed}).ok());
  }
  ASSERT_EQ(RawDatabase(folder.file("s")).run("PRAGMA foreign_keys=ON; DELETE FROM jobs WHERE id=3"), "");
  auto store = std::move(open_sqlite_store({.path = folder.file("s")})).value();
  EXPECT_EQ(apply_one(*store, a_job()).value().id, 4);
}

// A statement that was prepared before is used again, with nothing left of its last use.
TEST(PreparedStatements, AreUsedAgainFromTheBeginning) {
  testing::TemporaryFolder folder;
  auto database = std::move(Database::open({.path = folder.file("d")})).value();
  ASSERT_TRUE(database->execute("CREATE TABLE t (a UNIQUE); INSERT INTO t VALUES (1), (2)").ok());
  const char* all = "SELECT a FROM t ORDER BY a";
  Statement outer = database->prepare(all);
  ASSERT_TRUE(outer.step().value());
  {
    Statement inner = database->prepare(all);
    ASSERT_TRUE(inner.step().value());
    EXPECT_EQ(inner.integer(0), 1) << "two of the same text know nothing of each other";
  }
  ASSERT_TRUE(outer.step().value());
  EXPECT_EQ(outer.integer(0), 2);
  const char* insert = "INSERT INTO t VALUES (?)";
  EXPECT_FALSE(database->prepare(insert).bind(int64_t{2}).run().ok());
  EXPECT_TRUE(database->prepare(insert).bind(int64_t{3}).run().ok()) << "a failure is forgotten";
  EXPECT_TRUE(database->prepare(insert).run().ok());
  Statement null = database->prepare("SELECT count(*) FROM t WHERE a IS NULL");
  ASSERT_TRUE(null.step().value());
  EXPECT_EQ(null.integer(0), 1) << "what was bound before is bound no more";
  // What was prepared before the schema changed.
  ASSERT_TRUE(database->execute("ALTER TABLE t ADD COLUMN b DEFAULT 7").ok());
  Statement later = database->prepare(all);
  EXPECT_TRUE(later.step().value());
}

TEST(StoreLocation, HasOneSpelling) {
  testing::TemporaryFolder folder;
  namespace fs = std::filesystem;
  const fs::path root = fs::canonical(folder.file(""));
  fs::create_directory(root / "real");
  fs::create_directory_symlink(root / "real", root / "link");
  const std::string path = root / "real" / "c.db";
  auto spellings = [&] {
    for (const fs::path& spelling :
         {root / "real/c.db", root / "real/./c.db", root / "link/../real//c.db", root / "link/c.db"}) {
      EXPECT_EQ(canonical_store_path(spelling).value(), path) << spelling;
    }
    EXPECT_EQ(canonical_store_path(fs::relative(path)).value(), path);
  };
  spellings();
  std::ofstream(path) << "";
  spellings();
  fs::create_symlink(path, root / "c.db");
  EXPECT_EQ(canonical_store_path(root / "c.db").value(), path) << "its lock is then the same file";
  EXPECT_EQ(canonical_store_path(root / "none/./there/c.db").value(), root / "none/there/c.db");
  EXPECT_EQ(canonical_store_path("").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace llm_dist::cluster
