#include "comm/agreement.h"

#include <string>

#include "src/base/format.h"

namespace llm_dist::comm {

Result<std::vector<bool>> agree(World& world, const std::vector<bool>& mine, Deadline deadline) {
  std::string answers;
  for (bool yes : mine) answers += yes ? 'y' : 'n';
  ASSIGN_OR_RETURN(std::vector<std::string> all, world.all_gather_bytes(answers, deadline));
  std::vector<bool> agreed(mine.size(), true);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != all[0].size())
      return internal_error(
          format("rank {} has {} answers, rank 0 {}", rank, all[rank].size(), all[0].size()));
    for (size_t i = 0; i < agreed.size() && i < all[rank].size(); ++i)
      agreed[i] = agreed[i] && all[rank][i] == 'y';
  }
  return agreed;
}

}  // namespace llm_dist::comm
