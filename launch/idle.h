// What a job has allocated and this world leaves unused.
#pragma once

#include <string>

#include "comm/world.h"

namespace llm_dist::launch {

// As this rank sees it: rank 0 counts nodes, the first rank of a host its GPUs. Empty: nothing, or no Slurm
// job. `uses_gpus`: the ranks run on them.
std::string idle_resources(const comm::World& world, const comm::Environment& environment, bool uses_gpus);

}  // namespace llm_dist::launch
