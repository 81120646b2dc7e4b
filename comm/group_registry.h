// GroupRegistry: the errors of a rank's live groups by number, so that an abort from a peer, or of the whole
// world, finds them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "comm/first_error.h"
#include "comm/rank_discovery.h"

namespace llm_dist::comm {

// This rank's position in `world_ranks`, or invalid_argument: not a member, a rank twice, a rank outside the
// world.
Result<int> rank_in_group(std::span<const int> world_ranks, const RankInfo& info);

class GroupRegistry {
 public:
  // The error of group `id`, already set when an abort came first.
  std::shared_ptr<FirstError> open(int id);
  // Sets the error of group `id`, now or when it is opened.
  void abort(int id, const Status& cause);
  // Sets the error of every group, and of those to come.
  void abort_all(const Status& cause);
  Status error() const { return world_error_.get(); }

 private:
  std::shared_ptr<FirstError> find_or_add(int id);

  std::mutex mutex_;
  std::map<int, std::shared_ptr<FirstError>> groups_;
  FirstError world_error_;
};

}  // namespace llm_dist::comm
