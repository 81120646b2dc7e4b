// World: all ranks of one replica, and how groups of them get a communicator. A rank's own view.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_discovery.h"
#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::comm {

// Of one rank, as that rank tells it.
struct HostInfo {
  std::string hostname;
  std::string boot_id;  // equal for ranks that run under one kernel
  int pid = 0;
  std::string address;  // numeric, where the other ranks have reached it; empty: nobody has told
  int local_rank = 0;   // among the ranks with the same hostname and boot id
  int local_size = 1;
};

struct WorldOptions {
  // How long one operation of a communicator may wait for its peers before it fails with deadline_exceeded.
  Duration collective_timeout = std::chrono::seconds(600);
  // How long starting, and making one group, may take.
  Duration setup_timeout = std::chrono::seconds(60);
  // How long ranks that nobody starts together (ssh, by hand) wait for each other.
  Duration meeting_timeout = std::chrono::seconds(300);
};

// Of one group's communicator.
struct GroupOptions {
  // Instead of WorldOptions::collective_timeout.
  std::optional<Duration> timeout;
  // Ranks that sleep while they wait for messages look for them every few tens of microseconds, however long
  // they wait: for words that a whole device waits for, where cores are not what others compute on.
  bool polls_often = false;
};

class World {
 public:
  virtual ~World() = default;
  virtual const RankInfo& rank_info() const = 0;
  // One entry a rank, in rank order.
  virtual const std::vector<HostInfo>& hosts() const = 0;

  // A communicator for `world_ranks`; the position in it is the rank in the group. Called by exactly those
  // ranks, which all make their groups in the same order. The world outlives it.
  virtual Result<std::unique_ptr<Communicator>> make_communicator(std::span<const int> world_ranks,
                                                                  const std::string& name,
                                                                  const GroupOptions& group) = 0;
  Result<std::unique_ptr<Communicator>> make_communicator(std::span<const int> world_ranks,
                                                          const std::string& name) {
    return make_communicator(world_ranks, name, GroupOptions{});
  }
  virtual const WorldOptions& options() const = 0;

  // Every rank calls these two, in the same order, from one thread at a time. Not for the step loop.
  virtual Status barrier(Deadline deadline) = 0;
  // Every rank's bytes, in rank order.
  virtual Result<std::vector<std::string>> all_gather_bytes(const std::string& mine, Deadline deadline) = 0;

  // Ends every operation of every communicator made here. Any thread; never blocks.
  virtual void abort(Status cause) = 0;
  // Leaves the world in good order, together with the other ranks. After an abort, or when a peer does not
  // come, it leaves alone and says so: the process then ends with _exit, because a launcher's library may
  // block at exit waiting for the dead. Every communicator is gone before.
  virtual Status close(Deadline deadline) = 0;
};

// This host, as hosts() shows it; local_rank and local_size are not filled.
HostInfo this_host();
// Fills local_rank and local_size of each from hostname and boot_id.
void number_local_ranks(std::vector<HostInfo>& hosts);

std::unique_ptr<World> make_single_process_world(const WorldOptions& options);

// The world that `info` describes: one process, or MPI ranks through the module (comm/mpi_loader.h). Ranks
// without MPI: comm/bootstrap.h.
Result<std::unique_ptr<World>> make_world(const RankInfo& info, const WorldOptions& options);

}  // namespace llm_dist::comm
