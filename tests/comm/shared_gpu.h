// A communicator for ranks that are threads of one process and have one GPU together, which NCCL does not
// take: it stands in NCCL's place where tests over peer memory run on a single GPU. Slow and obvious: one
// block a call, which reads and writes the other ranks' tensors in place.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/world.h"

namespace llm_dist::comm {

// As make_nccl_communicator, of ranks that all have GPU `device_index`.
Result<std::unique_ptr<Communicator>> make_shared_gpu_communicator(World& world,
                                                                   std::span<const int> world_ranks,
                                                                   const std::string& name,
                                                                   int device_index);

}  // namespace llm_dist::comm
