// NCCL groups over a world: opens the NCCL module at run time and brings the group's id to its ranks.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/world.h"

namespace llm_dist::comm {

// A communicator of GPUs for `world_ranks`, each on device `device_index` of its process; a group of one
// needs no NCCL. Called by exactly those ranks, which all make their groups in the same order.
// failed_precondition when the module or libnccl is missing. A pair that hands off announces its messages
// (announced_communicator.h).
Result<std::unique_ptr<Communicator>> make_nccl_communicator(World& world,
                                                             std::span<const int> world_ranks,
                                                             const std::string& name,
                                                             int device_index,
                                                             const GroupUse& use = {});

}  // namespace llm_dist::comm
