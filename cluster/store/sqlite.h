// SQLite as RAII: a connection and a prepared statement. Internal to this folder; sqlite3.h stays in
// sqlite.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/status.h"

struct sqlite3;
struct sqlite3_stmt;

namespace llm_dist::cluster {

// The message of a trigger's RAISE, or of SQLite. resource_exhausted: the disk is full; failed_precondition:
// a constraint or a trigger refused; data_loss: not a database, or a broken one; unavailable: everything
// else.
Status sqlite_status(sqlite3* connection, int code);

// Statements that were prepared and are not in use: preparing one takes longer than most take to run.
class PreparedStatements {
 public:
  explicit PreparedStatements(sqlite3* connection) : connection_(connection) {}
  ~PreparedStatements() { clear(); }
  PreparedStatements(const PreparedStatements&) = delete;
  PreparedStatements& operator=(const PreparedStatements&) = delete;

  sqlite3* connection() const { return connection_; }
  // Null where there is none. It goes to the caller.
  sqlite3_stmt* take(const std::string& sql);
  void give_back(std::string sql, sqlite3_stmt* statement);
  void clear();

 private:
  sqlite3* connection_;
  std::unordered_map<std::string, sqlite3_stmt*> idle_;
};

class Statement {
 public:
  Statement(PreparedStatements& prepared, std::string sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  // Parameters in their order; every one before the first step().
  Statement& bind(int64_t value);
  Statement& bind(std::string_view value);
  // True: a row is there. False: no more rows.
  Result<bool> step();
  // step() that expects no row.
  Status run();

  int64_t integer(int column) const;
  std::string text(int column) const;
  bool is_null(int column) const;

 private:
  PreparedStatements& prepared_;
  const std::string sql_;
  sqlite3_stmt* statement_ = nullptr;
  int prepare_code_ = 0;
  int num_bound_ = 0;
};

// Every row that is left, each as `read(statement)` makes it.
template <typename T, typename Read>
Result<std::vector<T>> read_all(Statement& rows, const Read& read) {
  std::vector<T> found;
  while (true) {
    ASSIGN_OR_RETURN(bool more, rows.step());
    if (!more) return found;
    found.push_back(read(rows));
  }
}

// One connection. Not thread-safe.
class Database {
 public:
  struct Options {
    std::string path;
    std::string vfs{};  // name of a registered VFS; empty: SQLite's default
    bool read_only = false;
  };
  static Result<std::unique_ptr<Database>> open(const Options& options);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  Statement prepare(std::string sql) { return Statement(prepared_, std::move(sql)); }
  // Several statements, no parameters, rows are dropped.
  Status execute(const std::string& sql);
  int64_t last_insert_id() const;
  int64_t num_changed() const;
  bool in_transaction() const;

 private:
  explicit Database(sqlite3* connection) : connection_(connection), prepared_(connection) {}
  sqlite3* connection_;
  PreparedStatements prepared_;
};

}  // namespace llm_dist::cluster
