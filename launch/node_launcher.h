// Starts the ranks of one node, for worlds that no launcher starts: --nnodes, --node-rank, --nproc-per-node.
#pragma once

#include <functional>
#include <string>

#include "comm/bootstrap.h"

namespace CLI {
class App;
}

namespace llm_dist::launch {

struct LaunchFlags {
  int nnodes = 0;  // 0: not given
  int node_rank = 0;
  int nproc_per_node = 1;
  comm::BootstrapFlags bootstrap;  // its ranks are set by in_ranks
  double rendezvous_timeout_seconds = 300;
  bool allow_idle = false;
};

void add_launch_flags(CLI::App& app, LaunchFlags& flags);

// Runs `command` as the rank or ranks that the flags ask for, and returns the exit code of the node: of the
// first rank that failed, or 0. With several ranks a node they are processes of their own, which end with
// this one; signals go on to them. Without these flags it just runs `command`. Called before any thread is
// started.
int in_ranks(LaunchFlags& flags, const std::function<int()>& command);

}  // namespace llm_dist::launch
