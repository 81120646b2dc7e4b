// Bootstrap: how this process becomes a rank of a world, from flags and from what a launcher left in the
// environment: over MPI, or over a meeting of our own (comm/tcp) where there is none.
#pragma once

#include <memory>
#include <string>

#include "comm/rank_discovery.h"
#include "comm/tcp/meeting.h"
#include "comm/world.h"

namespace llm_dist::comm {

// The command line's; they win over the environment.
struct BootstrapFlags {
  RankFlags ranks;
  std::string master_addr;
  int master_port = 0;             // 0: not given
  std::string transport = "auto";  // auto, mpi, tcp
  std::string secret_file;
  std::string interface_name;
  std::string secret;    // from the launcher that forked this process
  int listener_fd = -1;  // as MeetingPlan's
};

struct Bootstrap {
  RankInfo ranks;
  bool over_tcp = false;
  MeetingPlan meeting;  // over TCP
};

constexpr int kDefaultMasterPort = 29500;

// invalid_argument names the flag or the variable that is missing or wrong.
Result<Bootstrap> plan_bootstrap(const BootstrapFlags& flags, const Environment& environment);

// The world: one process, MPI's through its module (comm/mpi_loader.h), or one that meets over TCP.
Result<std::unique_ptr<World>> make_world(const Bootstrap& bootstrap, const WorldOptions& options);

// The first host of Slurm's compact list: "gpu007" of "gpu[007-010,12],login".
std::string first_host(const std::string& node_list);

}  // namespace llm_dist::comm
