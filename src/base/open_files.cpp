#include "src/base/open_files.h"

#include "src/base/check.h"

namespace llm_dist {

OpenFiles raise_open_files() {
  OpenFiles files;
  CHECK(getrlimit(RLIMIT_NOFILE, &files.before) == 0, "the limit of open files cannot be read");
  rlimit raised{.rlim_cur = files.before.rlim_max, .rlim_max = files.before.rlim_max};
  files.now = setrlimit(RLIMIT_NOFILE, &raised) == 0 ? raised.rlim_cur : files.before.rlim_cur;
  return files;
}

}  // namespace llm_dist
