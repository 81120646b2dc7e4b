// Where a store may stand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "src/base/status.h"

namespace llm_dist::cluster {

// $XDG_STATE_HOME/llm-dist/coordinator.db, else ~/.local/state/llm-dist/coordinator.db, else
// /var/lib/llm-dist/coordinator.db.
std::string default_store_path();

// The one spelling of a store's place, whatever leads there: what an older coordinator wrote down and handed
// to others is found by it. invalid_argument: nothing can be there.
Result<std::string> canonical_store_path(const std::string& path);

// The name of a file system that other machines share, by the f_type of statfs(2); empty for a local one.
std::string network_file_system(uint64_t type);

// failed_precondition when the folder of `path` is on a network file system: SQLite's locks and its shared
// memory do not work there. Makes the folder (mode 0700) where it is missing.
Status check_store_location(const std::string& path);

// One coordinator a store: a lock on `path`.lock, given back by the kernel however the process ends.
class StoreLock {
 public:
  // failed_precondition: another process holds it.
  static Result<std::unique_ptr<StoreLock>> take(const std::string& path);
  ~StoreLock();
  // Whether some process has it; asking disturbs nobody.
  static bool is_held(const std::string& path);
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  explicit StoreLock(int file) : file_(file) {}
  int file_;
};

}  // namespace llm_dist::cluster
