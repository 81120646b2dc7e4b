#include "comm/agreement.h"

#include <numeric>
#include <string>

#include "src/base/format.h"

namespace llm_dist::comm {

Result<std::vector<bool>> agree(World& world, const std::vector<bool>& mine, Deadline deadline) {
  std::vector<int> all(static_cast<size_t>(world.rank_info().size));
  std::iota(all.begin(), all.end(), 0);
  return agree(world, all, mine, deadline);
}

Result<std::vector<bool>> agree(World& world,
                                std::span<const int> ranks,
                                const std::vector<bool>& mine,
                                Deadline deadline) {
  std::string answers;
  for (bool yes : mine) answers += yes ? 'y' : 'n';
  ASSIGN_OR_RETURN(std::vector<std::string> all, world.all_gather_bytes(answers, deadline));
  std::vector<bool> agreed(mine.size(), true);
  const std::string& first = all[static_cast<size_t>(ranks.front())];
  for (int rank : ranks) {
    const std::string& theirs = all[static_cast<size_t>(rank)];
    if (theirs.size() != first.size())
      return internal_error(
          format("rank {} has {} answers, rank {} {}", rank, theirs.size(), ranks.front(), first.size()));
    for (size_t i = 0; i < agreed.size() && i < theirs.size(); ++i) agreed[i] = agreed[i] && theirs[i] == 'y';
  }
  return agreed;
}

}  // namespace llm_dist::comm
