#include "comm/world.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include "comm/first_error.h"
#include "comm/group_registry.h"
#include "comm/mpi_loader.h"
#include "comm/self_communicator.h"

namespace llm_dist::comm {
namespace {

class SingleProcessWorld : public World {
 public:
  explicit SingleProcessWorld(const WorldOptions& options) : options_(options), hosts_{this_host()} {}

  const RankInfo& rank_info() const override { return info_; }
  const std::vector<HostInfo>& hosts() const override { return hosts_; }
  const WorldOptions& options() const override { return options_; }
  Result<std::unique_ptr<Communicator>> make_communicator(std::span<const int> world_ranks,
                                                          const std::string& name,
                                                          const GroupOptions&) override {
    ASSIGN_OR_RETURN(int rank, rank_in_group(world_ranks, info_));
    CHECK_EQ(rank, 0);
    return std::unique_ptr<Communicator>(std::make_unique<SelfCommunicator>(name));
  }
  Status barrier(Deadline) override { return error_.get(); }
  Result<std::vector<std::string>> all_gather_bytes(const std::string& mine, Deadline) override {
    RETURN_IF_ERROR(error_.get());
    return std::vector<std::string>{mine};
  }
  void abort(Status cause) override { error_.set(std::move(cause)); }
  Status close(Deadline) override { return error_.get(); }

 private:
  WorldOptions options_;
  RankInfo info_;
  std::vector<HostInfo> hosts_;
  FirstError error_;
};

}  // namespace

HostInfo this_host() {
  HostInfo host;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) host.hostname = name.data();
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  std::getline(boot_id, host.boot_id);
  host.pid = static_cast<int>(getpid());
  return host;
}

void number_local_ranks(std::vector<HostInfo>& hosts) {
  auto same = [](const HostInfo& a, const HostInfo& b) {
    return a.hostname == b.hostname && a.boot_id == b.boot_id;
  };
  for (size_t rank = 0; rank < hosts.size(); ++rank) {
    hosts[rank].local_rank = 0;
    hosts[rank].local_size = 0;
    for (size_t other = 0; other < hosts.size(); ++other) {
      if (!same(hosts[rank], hosts[other])) continue;
      ++hosts[rank].local_size;
      if (other < rank) ++hosts[rank].local_rank;
    }
  }
}

std::unique_ptr<World> make_single_process_world(const WorldOptions& options) {
  return std::make_unique<SingleProcessWorld>(options);
}

Result<std::unique_ptr<World>> make_world(const RankInfo& info, const WorldOptions& options) {
  if (info.size == 1) return make_single_process_world(options);
  return make_mpi_world(info, options);
}

}  // namespace llm_dist::comm
