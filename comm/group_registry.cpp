#include "comm/group_registry.h"

#include <algorithm>

namespace llm_dist::comm {

Result<int> rank_in_group(std::span<const int> world_ranks, const RankInfo& info) {
  int position = -1;
  for (size_t i = 0; i < world_ranks.size(); ++i) {
    int rank = world_ranks[i];
    if (rank < 0 || rank >= info.size)
      return invalid_argument(format("rank {} in a group of a world of {}", rank, info.size));
    if (std::count(world_ranks.begin(), world_ranks.end(), rank) != 1)
      return invalid_argument(format("rank {} twice in a group", rank));
    if (rank == info.rank) position = static_cast<int>(i);
  }
  if (position < 0) return invalid_argument(format("rank {} makes a group that it is not in", info.rank));
  return position;
}

std::shared_ptr<FirstError> GroupRegistry::find_or_add(int id) {
  auto& group = groups_[id];
  if (group == nullptr) group = std::make_shared<FirstError>();
  return group;
}

std::shared_ptr<FirstError> GroupRegistry::open(int id) {
  std::lock_guard lock(mutex_);
  auto group = find_or_add(id);
  if (world_error_.failed()) group->set(world_error_.get());
  return group;
}

void GroupRegistry::abort(int id, const Status& cause) {
  std::lock_guard lock(mutex_);
  find_or_add(id)->set(cause);
}

void GroupRegistry::abort_all(const Status& cause) {
  std::lock_guard lock(mutex_);
  world_error_.set(cause);
  for (auto& [id, group] : groups_) group->set(cause);
}

}  // namespace llm_dist::comm
