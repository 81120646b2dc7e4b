// Which of this machine's addresses other hosts reach.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::comm {

// One address of a network interface that is up.
struct Interface {
  std::string name;
  std::string address;  // numeric, IPv4 or IPv6; no link-local IPv6, which means nothing without a scope
  bool loopback = false;
  bool carrier = true;
};
// IPv4 addresses first.
std::vector<Interface> interfaces();

// What decides where this machine is reached by hosts of which nothing is known.
struct HostNetwork {
  std::vector<std::string> default_sources;  // the kernel's own on its default routes, IPv4's first
  std::vector<Interface> interfaces;
};
HostNetwork this_network();

// The source on a default route; else the first interface that leads elsewhere, those that hosts have for
// their own containers and virtual machines last. kNotFound: only the loopback is up.
Result<std::string> default_address(const HostNetwork& network);
// kNotFound names the interfaces there are.
Result<std::string> interface_address(const std::string& name);

}  // namespace llm_dist::comm
