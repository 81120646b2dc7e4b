// Groups of GPUs: NCCL, and in front of it collectives and messages of our own over peer memory where the
// GPUs can reach each other.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/p2p/peer_group.h"
#include "comm/world.h"

namespace llm_dist::comm {

// As make_nccl_communicator, whose communicator it returns when the ranks are on several hosts or their GPUs
// cannot reach each other; the log says so.
Result<std::unique_ptr<Communicator>> make_p2p_communicator(World& world,
                                                            std::span<const int> world_ranks,
                                                            const std::string& name,
                                                            int device_index,
                                                            const PeerLimits& limits);

// The same with another communicator of those ranks in NCCL's place.
Result<std::unique_ptr<Communicator>> put_peer_memory_before(std::unique_ptr<Communicator> fallback,
                                                             World& world,
                                                             std::span<const int> world_ranks,
                                                             int device_index,
                                                             const PeerLimits& limits);

}  // namespace llm_dist::comm
