// How many files and sockets this process may have open, and how many clients that leaves room for.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace llm_dist::cluster {

struct OpenFiles {
  rlimit before{};  // for the programs that this one starts
  rlim_t now = 0;   // that it may have
};

// Raises the soft limit of this process to the hard one: the usual 1024 are used up by clients that say
// nothing.
OpenFiles raise_open_files();

// So many clients that `own` descriptors are left for what the process does itself, of `open_files` in all;
// where there are few, a quarter of them is the clients' all the same. A client may have a file besides its
// socket.
size_t clients_within(rlim_t open_files, rlim_t own);

}  // namespace llm_dist::cluster
