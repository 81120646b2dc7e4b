// How a launch on one host comes by a secret that nobody gave it: rank 0 draws it and hands it to processes
// of the same user, which the kernel vouches for (SO_PEERCRED). The socket is in the abstract namespace: it
// leaves no file.
#pragma once

#include "comm/host/fd.h"
#include "comm/host/setup.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

// Rank 0: listens under the meeting's port.
Result<Fd> offer_local_secret(uint16_t port);
// Rank 0: hands the secret to whoever waits there and is of the same user. Never blocks.
void hand_over_secret(const Fd& offer, const Secret& secret);
// The others. kUnavailable: nobody offers it (yet).
Result<Secret> take_local_secret(uint16_t port, Deadline deadline);

}  // namespace llm_dist::comm
