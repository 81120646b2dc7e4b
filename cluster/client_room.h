// How many clients a process has room for, by the files and sockets that it may have open.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace llm_dist::cluster {

// So many that `own` descriptors are left for what the process does itself, of `open_files` in all; where
// there are few, a quarter of them is the clients' all the same. A client may have a file besides its socket.
size_t clients_within(rlim_t open_files, rlim_t own);

// So many requests of a batch may each of `num_replicas` have in flight that they, with what their clients
// take besides, and `own` leave a quarter of `open_files` to others. At least one, whatever there is.
size_t items_within(rlim_t open_files, rlim_t own, size_t num_replicas);

}  // namespace llm_dist::cluster
