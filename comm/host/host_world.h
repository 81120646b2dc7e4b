// Who takes part in the host-side plane of a world of ranks, and how the ranks find each other.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::comm {

// Every rank of the world calls it, the same number of times; returns every rank's bytes in rank order. It
// is used during setup only and brings its own deadline. MPI, a thread world or a TCP rendezvous gives it.
using AllGatherBytes = std::function<Result<std::vector<std::string>>(const std::string& mine)>;

struct HostWorld {
  int rank = 0;
  int size = 1;
  std::vector<std::string> hosts;  // [size]: ranks with equal ids share memory
  AllGatherBytes all_gather;       // not needed when size is 1
  // The network interface that carries the sockets ("eth0"); empty: the one that leads to rank 0.
  std::string interface_name;
  std::string root_address;    // where every rank has reached rank 0 already, numeric; empty: not known
  bool force_sockets = false;  // sockets between ranks of one host too
  double setup_seconds = 30;   // limit of each connect and accept phase
};

}  // namespace llm_dist::comm
