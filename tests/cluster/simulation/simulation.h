// A deterministic simulation of a coordinator: the production objects on virtual time, with a disk, a machine
// and clients that one seeded generator drives. The same seed is the same history.
#pragma once

#include "tests/cluster/simulation/world.h"

namespace llm_dist::cluster::simulation {

// `folder` is for the files that are no database; it is emptied.
SimulationResult simulate(const SimulationOptions& options, const std::string& folder);

}  // namespace llm_dist::cluster::simulation
