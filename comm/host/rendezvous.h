// Rendezvous: authenticated TCP connections between ranks that have exchanged addresses and a secret.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/host/host_world.h"
#include "comm/host/setup.h"
#include "comm/host/socket.h"

namespace llm_dist::comm {

// One rank's part in a world's sockets.
struct SocketPlan {
  Secret secret{};                  // rank 0 drew it for this world and use
  std::vector<Endpoint> endpoints;  // [size]; port 0 where a rank does not listen
  Listener listener;                // if this rank listens
};

// Collective. Rank 0 offers the address of the named interface, or the one at which the ranks have met, or on
// one host the loopback, or its default one (own_address.h); the others, the address that leads there.
Result<SocketPlan> plan_sockets(const HostWorld& world, bool listen_here);

// One connection of a pair of ranks.
struct PeerLane {
  int rank = 0;
  int lane = 0;

  bool operator==(const PeerLane&) const = default;
};

// Connects to `peer` as this world's rank; returns once it has accepted. kUnavailable: refused.
Result<Fd> connect_peer(const SocketPlan& plan, int own_rank, PeerLane peer, Deadline deadline);
// Accepts exactly one connection for each of `expected` (in its order). A stranger, a wrong secret or a
// second connection of one lane is closed and logged, and disturbs nobody. A connection may stay silent until
// the deadline, unless there is a crowd of silent ones.
Result<std::vector<Fd>> accept_peers(const SocketPlan& plan,
                                     const std::vector<PeerLane>& expected,
                                     Deadline deadline);

}  // namespace llm_dist::comm
