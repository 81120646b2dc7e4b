// ThreadWorld: several ranks in one process, each on a thread of its own. For tests, and for ThreadSanitizer.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/thread/thread_group.h"
#include "comm/world.h"

namespace llm_dist::comm {

// Shared by the rank threads; outlives what it makes.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size, WorldOptions options = {});

  // Rank `rank`'s view; once a rank.
  std::unique_ptr<World> join(int rank);

  // For ThreadWorldRank.
  const WorldOptions& options() const { return options_; }
  const std::vector<HostInfo>& hosts() const { return hosts_; }
  // The `nth` group of that name and those members: the first rank to ask makes it.
  std::shared_ptr<ThreadGroup> group(const std::string& name, const std::vector<int>& members, int nth);
  Result<std::vector<std::string>> all_gather_bytes(int rank, const std::string& mine, Deadline deadline);
  void abort(const Status& cause);
  Status error() const;

 private:
  using GroupKey = std::tuple<std::string, std::vector<int>, int>;

  WorldOptions options_;
  std::vector<HostInfo> hosts_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status error_;
  std::map<GroupKey, std::shared_ptr<ThreadGroup>> groups_;
  // all_gather_bytes: what the ranks brought, and of the last complete round, what all brought.
  std::vector<std::string> brought_;
  std::vector<bool> present_;
  int num_present_ = 0;
  uint64_t rounds_ = 0;
  std::vector<std::string> gathered_;
};

}  // namespace llm_dist::comm
