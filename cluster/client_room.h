// How many clients a process has room for, by the files and sockets that it may have open.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace llm_dist::cluster {

// So many that `own` descriptors are left for what the process does itself, of `open_files` in all; where
// there are few, a quarter of them is the clients' all the same. A client may have a file besides its socket.
size_t clients_within(rlim_t open_files, rlim_t own);

}  // namespace llm_dist::cluster
