// The host-side plane of a world: its ranks as comm/host connects them.
#pragma once

#include <string>

#include "comm/host/host_world.h"
#include "comm/world.h"

namespace llm_dist::comm {

// Exchanges go through `world`, which outlives it, and may take `limit` each.
HostWorld host_world(World& world, const std::string& interface_name, Duration limit);

}  // namespace llm_dist::comm
