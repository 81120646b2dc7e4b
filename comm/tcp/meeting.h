// Meeting: how ranks without a launcher's channel (MPI, PMIx) find each other. Rank 0 listens where everybody
// was told; the others come, both sides prove that they know the launch's secret, and each learns where every
// rank listens.
#pragma once

#include <cstdint>
#include <string>

#include "comm/host/rendezvous.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

struct MeetingPlan {
  int rank = 0;
  int size = 1;
  std::string address;  // of rank 0's host: a name or numeric
  uint16_t port = 0;
  // Known to every rank and to nobody else. Empty: on one host (a loopback address) rank 0 draws one and
  // hands it to processes of the same user; anywhere else that is invalid_argument.
  std::string secret;
  std::string interface_name;  // whose address this rank listens at; empty: the one that leads to rank 0
  int listener_fd = -1;        // rank 0: a socket that listens already; taken over
};

// Collective; every rank gets the same secret, drawn by rank 0 for this world alone. A rank that does not
// come, two that claim the same place, or one that was started for another number of ranks end it for
// everybody with a message that names them.
Result<SocketPlan> meet(const MeetingPlan& plan, Deadline deadline);

}  // namespace llm_dist::comm
