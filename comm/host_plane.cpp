#include "comm/host_plane.h"

namespace llm_dist::comm {

HostWorld host_world(World& world, const std::string& interface_name, Duration limit) {
  HostWorld hosts{.rank = world.rank_info().rank, .size = world.rank_info().size};
  for (const HostInfo& host : world.hosts()) hosts.hosts.push_back(host.hostname + "/" + host.boot_id);
  hosts.all_gather = [&world, limit](const std::string& mine) {
    return world.all_gather_bytes(mine, Deadline::after(limit));
  };
  hosts.interface_name = interface_name;
  hosts.root_address = world.hosts().front().address;
  return hosts;
}

}  // namespace llm_dist::comm
