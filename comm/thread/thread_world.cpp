#include "comm/thread/thread_world.h"

#include "comm/group_registry.h"
#include "comm/self_communicator.h"
#include "comm/thread/thread_communicator.h"

namespace llm_dist::comm {
namespace {

class ThreadWorldRank : public World {
 public:
  ThreadWorldRank(ThreadWorld& world, int rank) : world_(world) {
    int size = static_cast<int>(world.hosts().size());
    info_ = {.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  }

  const RankInfo& rank_info() const override { return info_; }
  const std::vector<HostInfo>& hosts() const override { return world_.hosts(); }
  const WorldOptions& options() const override { return world_.options(); }
  Result<std::unique_ptr<Communicator>> make_communicator(std::span<const int> world_ranks,
                                                          const std::string& name,
                                                          const GroupOptions& group) override;
  Status barrier(Deadline deadline) override { return all_gather_bytes("", deadline).status(); }
  Result<std::vector<std::string>> all_gather_bytes(const std::string& mine, Deadline deadline) override {
    return world_.all_gather_bytes(info_.rank, mine, deadline);
  }
  void abort(Status cause) override { world_.abort(cause); }
  Status close(Deadline deadline) override { return barrier(deadline); }

 private:
  ThreadWorld& world_;
  RankInfo info_;
  std::map<std::pair<std::string, std::vector<int>>, int> made_;
};

Result<std::unique_ptr<Communicator>> ThreadWorldRank::make_communicator(std::span<const int> world_ranks,
                                                                         const std::string& name,
                                                                         const GroupOptions& group) {
  ASSIGN_OR_RETURN(int rank, rank_in_group(world_ranks, info_));
  if (world_ranks.size() == 1) return std::unique_ptr<Communicator>(std::make_unique<SelfCommunicator>(name));
  std::vector<int> members(world_ranks.begin(), world_ranks.end());
  int nth = made_[{name, members}]++;
  CommInfo info{.backend = "thread", .name = name, .rank = rank, .size = static_cast<int>(members.size())};
  return std::unique_ptr<Communicator>(
      std::make_unique<ThreadCommunicator>(world_.group(name, members, nth),
                                           std::move(info),
                                           group.timeout.value_or(options().collective_timeout)));
}

}  // namespace

ThreadWorld::ThreadWorld(int size, WorldOptions options)
    : options_(options),
      hosts_(static_cast<size_t>(size), this_host()),
      brought_(hosts_.size()),
      present_(hosts_.size()) {
  CHECK_GE(size, 1);
  number_local_ranks(hosts_);
}

std::unique_ptr<World> ThreadWorld::join(int rank) {
  CHECK(rank >= 0 && static_cast<size_t>(rank) < hosts_.size(), "rank {} of {}", rank, hosts_.size());
  return std::make_unique<ThreadWorldRank>(*this, rank);
}

std::shared_ptr<ThreadGroup> ThreadWorld::group(const std::string& name,
                                                const std::vector<int>& members,
                                                int nth) {
  std::lock_guard lock(mutex_);
  auto& group = groups_[{name, members, nth}];
  if (group == nullptr) group = std::make_shared<ThreadGroup>(name, members);
  if (!error_.ok()) group->abort(error_);
  return group;
}

Result<std::vector<std::string>> ThreadWorld::all_gather_bytes(int rank,
                                                               const std::string& mine,
                                                               Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!error_.ok()) return error_;
  auto index = static_cast<size_t>(rank);
  CHECK(!present_[index], "rank {} gathers bytes on two threads at once", rank);
  brought_[index] = mine;
  present_[index] = true;
  uint64_t round = rounds_;
  if (++num_present_ == static_cast<int>(hosts_.size())) {
    num_present_ = 0;
    present_.assign(present_.size(), false);
    gathered_ = brought_;
    ++rounds_;
    changed_.notify_all();
    return gathered_;
  }
  changed_.wait_until(lock, deadline.when(), [&] { return rounds_ != round || !error_.ok(); });
  // No rank can complete the next round before this one has brought to it, so gathered_ is this round's.
  if (rounds_ != round) return gathered_;
  present_[index] = false;
  --num_present_;
  if (!error_.ok()) return error_;
  return deadline_exceeded(format("rank {}: not every rank of the world came in time", rank));
}

void ThreadWorld::abort(const Status& cause) {
  std::lock_guard lock(mutex_);
  if (error_.ok()) error_ = cause;
  for (auto& [key, group] : groups_) group->abort(error_);
  changed_.notify_all();
}

Status ThreadWorld::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace llm_dist::comm
