#include "cluster/store/sqlite.h"

#include <sqlite3.h>

#include "src/base/check.h"
#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

constexpr int kBusyMilliseconds = 10'000;
constexpr size_t kMaxPrepared = 128;  // a connection; the program itself asks fewer different things

}  // namespace

Status sqlite_status(sqlite3* connection, int code) {
  std::string message = connection != nullptr ? sqlite3_errmsg(connection) : sqlite3_errstr(code);
  switch (code & 0xff) {
    case SQLITE_FULL: return resource_exhausted("the store's disk is full: " + message);
    case SQLITE_CONSTRAINT: return failed_precondition(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return data_loss("the store is broken: " + message);
    case SQLITE_MISUSE:
    case SQLITE_RANGE: CHECK(false, "SQLite: {}", message);
    default: return unavailable(format("the store: {} (SQLite code {})", message, code));
  }
}

void PreparedStatements::clear() {
  for (const auto& [sql, statement] : idle_) sqlite3_finalize(statement);
  idle_.clear();
}

sqlite3_stmt* PreparedStatements::take(const std::string& sql) {
  auto found = idle_.find(sql);
  if (found == idle_.end()) return nullptr;
  sqlite3_stmt* statement = found->second;
  idle_.erase(found);
  return statement;
}

void PreparedStatements::give_back(std::string sql, sqlite3_stmt* statement) {
  sqlite3_reset(statement);
  sqlite3_clear_bindings(statement);
  bool kept = idle_.size() < kMaxPrepared && idle_.emplace(std::move(sql), statement).second;
  if (!kept) sqlite3_finalize(statement);
}

Statement::Statement(PreparedStatements& prepared, std::string sql)
    : prepared_(prepared), sql_(std::move(sql)), statement_(prepared.take(sql_)) {
  if (statement_ != nullptr) return;
  sqlite3* connection = prepared_.connection();
  prepare_code_ =
      sqlite3_prepare_v2(connection, sql_.data(), static_cast<int>(sql_.size()), &statement_, nullptr);
  // A wrong statement is a bug; a file that cannot be read is the world's.
  CHECK((prepare_code_ & 0xff) != SQLITE_ERROR, "{}: {}", sqlite3_errmsg(connection), sql_);
}
Statement::~Statement() {
  if (statement_ != nullptr) prepared_.give_back(sql_, statement_);
}

Statement& Statement::bind(int64_t value) {
  if (statement_ == nullptr) return *this;
  CHECK_EQ(sqlite3_bind_int64(statement_, ++num_bound_, value), SQLITE_OK);
  return *this;
}
Statement& Statement::bind(std::string_view value) {
  if (statement_ == nullptr) return *this;
  // A null pointer would bind NULL.
  const char* data = value.data() == nullptr ? "" : value.data();
  CHECK_EQ(
      sqlite3_bind_text(statement_, ++num_bound_, data, static_cast<int>(value.size()), SQLITE_TRANSIENT),
      SQLITE_OK);
  return *this;
}

Result<bool> Statement::step() {
  if (prepare_code_ != SQLITE_OK) return sqlite_status(prepared_.connection(), prepare_code_);
  int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return sqlite_status(prepared_.connection(), code);
}
Status Statement::run() {
  Result<bool> row = step();
  return row.ok() ? ok_status() : row.status();
}

int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_, column); }
std::string Statement::text(int column) const {
  auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  return data == nullptr ? "" : std::string(data, sqlite3_column_bytes(statement_, column));
}
bool Statement::is_null(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

Result<std::unique_ptr<Database>> Database::open(const Options& options) {
  sqlite3* connection = nullptr;
  int flags = options.read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  int code = sqlite3_open_v2(options.path.c_str(),
                             &connection,
                             flags | SQLITE_OPEN_NOMUTEX,
                             options.vfs.empty() ? nullptr : options.vfs.c_str());
  std::unique_ptr<Database> database(new Database(connection));
  if (code != SQLITE_OK) return sqlite_status(connection, code).with_context(options.path);
  sqlite3_extended_result_codes(connection, 1);
  sqlite3_busy_timeout(connection, kBusyMilliseconds);
  return database;
}
Database::~Database() {
  prepared_.clear();
  sqlite3_close_v2(connection_);
}

Status Database::execute(const std::string& sql) {
  int code = sqlite3_exec(connection_, sql.c_str(), nullptr, nullptr, nullptr);
  CHECK((code & 0xff) != SQLITE_ERROR, "{}: {}", sqlite3_errmsg(connection_), sql);
  return code == SQLITE_OK ? ok_status() : sqlite_status(connection_, code);
}
int64_t Database::last_insert_id() const { return sqlite3_last_insert_rowid(connection_); }
int64_t Database::num_changed() const { return sqlite3_changes64(connection_); }
bool Database::in_transaction() const { return sqlite3_get_autocommit(connection_) == 0; }

}  // namespace llm_dist::cluster
