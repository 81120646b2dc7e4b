#include "src/base/open_files.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm_dist {

OpenFiles raise_open_files() {
  OpenFiles files;
  CHECK(getrlimit(RLIMIT_NOFILE, &files.before) == 0, "the limit of open files cannot be read");
  rlimit raised{.rlim_cur = files.before.rlim_max, .rlim_max = files.before.rlim_max};
  files.now = setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : files.before.rlim_cur;
  return files;
}

rlim_t files_left(rlim_t open_files, rlim_t own) { return open_files - std::min(own, open_files / 4 * 3); }

}  // namespace llm_dist
