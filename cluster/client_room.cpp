#include "cluster/client_room.h"

#include <algorithm>

namespace llm_dist::cluster {

size_t clients_within(rlim_t open_files, rlim_t own) {
  return std::max<rlim_t>(1, (open_files - std::min(own, open_files / 4 * 3)) / 2);
}

}  // namespace llm_dist::cluster
