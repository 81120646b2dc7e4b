#include "cluster/client_room.h"

#include <algorithm>

#include "cluster/item_client.h"
#include "src/base/open_files.h"

namespace llm_dist::cluster {

size_t clients_within(rlim_t open_files, rlim_t own) {
  return std::max<rlim_t>(1, files_left(open_files, own) / 2);
}

size_t items_within(rlim_t open_files, rlim_t own, size_t num_replicas) {
  const rlim_t most = open_files / 4 * 3;
  const rlim_t each = (most - std::min(own, most)) / std::max<size_t>(1, num_replicas);
  return each > kItemClientFiles ? each - kItemClientFiles : 1;
}

}  // namespace llm_dist::cluster
