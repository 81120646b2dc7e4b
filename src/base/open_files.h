// How many files and sockets this process may have open.
#pragma once

#include <sys/resource.h>

namespace llm_dist {

struct OpenFiles {
  rlimit before{};  // for the programs that this one starts
  rlim_t now = 0;   // that it may have
};

// Raises the soft limit of this process to the hard one: the usual 1024 are soon used up where every client
// has one. As it was where the system refuses that.
OpenFiles raise_open_files();

// Of `open_files` in all, how many are left where this process wants `own` for what it does itself. Where
// there are few, a quarter of them all the same.
rlim_t files_left(rlim_t open_files, rlim_t own);

}  // namespace llm_dist
