#include "cluster/store/sqlite_schema.h"

#include "cluster/store/migrations.h"
#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

// 0 for a new file.
Result<int64_t> schema_version(Database& database) {
  Statement tables =
      database.prepare("SELECT count(*), count(*) FILTER (WHERE name = 'schema') FROM sqlite_master");
  RETURN_IF_ERROR(tables.step().status());
  if (tables.integer(0) == 0) return 0;
  if (tables.integer(1) == 0) return data_loss("this SQLite file is not a coordinator's store");
  Statement version = database.prepare("SELECT max(version) FROM schema");
  RETURN_IF_ERROR(version.step().status());
  return version.integer(0);
}

Status migrate_in_transaction(Database& database) {
  ASSIGN_OR_RETURN(int64_t version, schema_version(database));
  auto migrations = sqlite_migrations();
  const auto newest = static_cast<int64_t>(migrations.size());
  if (version > newest) {
    return failed_precondition(format(
        "the store has schema version {}; this program knows up to {}: use the program that wrote it, or a "
        "newer one",
        version,
        newest));
  }
  if (version == 0) {
    RETURN_IF_ERROR(database.execute("CREATE TABLE schema (version INTEGER PRIMARY KEY)"));
  }
  for (int64_t next = version; next < newest; ++next) {
    RETURN_IF_ERROR(database.execute(migrations[next]));
    RETURN_IF_ERROR(database.prepare("INSERT INTO schema VALUES (?)").bind(next + 1).run());
  }
  return ok_status();
}

}  // namespace

Status prepare_connection(Database& database) {
  Statement wal = database.prepare("PRAGMA journal_mode = WAL");
  RETURN_IF_ERROR(wal.step().status());
  if (wal.text(0) != "wal") {
    return failed_precondition("the store's file system offers no shared memory, which WAL needs");
  }
  return database.execute("PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;");
}

Status migrate(Database& database) {
  RETURN_IF_ERROR(database.execute("BEGIN IMMEDIATE"));
  Status status = migrate_in_transaction(database);
  if (status.ok()) return database.execute("COMMIT");
  Status undone = database.in_transaction() ? database.execute("ROLLBACK") : ok_status();
  return undone.ok() ? status : undone;
}

Result<int64_t> take_epoch(Database& database) {
  RETURN_IF_ERROR(database.execute("UPDATE writer SET epoch = epoch + 1"));
  Statement epoch = database.prepare("SELECT epoch FROM writer");
  RETURN_IF_ERROR(epoch.step().status());
  return epoch.integer(0);
}

}  // namespace llm_dist::cluster
