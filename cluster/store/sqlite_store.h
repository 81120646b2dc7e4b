// The store in one SQLite file: WAL with synchronous=FULL, one writing connection, one reading connection.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "cluster/store/store.h"
#include "src/base/clock.h"

namespace llm_dist::cluster {

struct SqliteStoreOptions {
  std::string path;
  std::string vfs{};  // name of a registered SQLite VFS whose files are not the kernel's; empty: the kernel's
  // How long apply() tries to learn what became of a commit that failed; then it returns an error that leaves
  // it open. For who throws the process away after that, as tests of crashes do.
  Duration longest_doubt = std::chrono::hours(24 * 365);
  std::function<void(Duration)> pause = [](Duration time) { std::this_thread::sleep_for(time); };
};

// Makes the file if it is missing, migrates an older schema, takes the next epoch. failed_precondition: a
// network file system, a newer schema, another coordinator; data_loss: not a store of ours, or a broken one.
Result<std::unique_ptr<Store>> open_sqlite_store(const SqliteStoreOptions& options);

}  // namespace llm_dist::cluster
