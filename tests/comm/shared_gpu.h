// Ranks that are threads of one process and have one GPU together, so that what several GPUs do can be tried
// where there is one. NCCL does not take such ranks: another communicator stands in its place, slow and
// obvious, one block a call, which reads and writes the other ranks' tensors in place.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/p2p/peer_group.h"
#include "comm/world.h"

namespace llm_dist::comm {

// As make_nccl_communicator, of ranks that all have GPU `device_index`.
Result<std::unique_ptr<Communicator>> make_shared_gpu_communicator(World& world,
                                                                   std::span<const int> world_ranks,
                                                                   const std::string& name,
                                                                   int device_index);

// As make_p2p_communicator, likewise.
Result<std::unique_ptr<Communicator>> make_p2p_on_shared_gpu(World& world,
                                                             std::span<const int> world_ranks,
                                                             const std::string& name,
                                                             int device_index,
                                                             const PeerLimits& limits);

}  // namespace llm_dist::comm
