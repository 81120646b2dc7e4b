#include "comm/host/own_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>

#include "comm/host/socket.h"

namespace llm_dist::comm {
namespace {

// Addresses of the documentation ranges (RFC 5737, RFC 3849): they stand for "anywhere else".
constexpr std::array kAnywhere = {"192.0.2.1", "2001:db8::1"};
// How the bridges and wires are called that Docker, Podman, libvirt, LXC, Kubernetes' networks and others lay
// inside a host. Their addresses are often the same on every host, and no other host reaches them.
constexpr std::array<std::string_view, 14> kInside = {"docker",
                                                      "br-",
                                                      "podman",
                                                      "virbr",
                                                      "vmnet",
                                                      "vboxnet",
                                                      "lxcbr",
                                                      "lxdbr",
                                                      "cni",
                                                      "flannel",
                                                      "cali",
                                                      "kube-",
                                                      "veth",
                                                      "dummy"};

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

// Means nothing without a scope.
bool is_link_local(const std::string& address) { return address.starts_with("fe80:"); }

bool stays_inside(const Interface& one) {
  return std::ranges::any_of(kInside, [&](std::string_view prefix) { return one.name.starts_with(prefix); });
}

std::string numeric_text(const sockaddr* address) {
  std::array<char, NI_MAXHOST> text{};
  socklen_t bytes = address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  int code = ::getnameinfo(address, bytes, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? text.data() : "";
}

}  // namespace

std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* address = entry->ifa_addr;
    if (address == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (address->sa_family != AF_INET && address->sa_family != AF_INET6) continue;
    Interface one{.name = entry->ifa_name,
                  .address = numeric_text(address),
                  .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0,
                  .carrier = (entry->ifa_flags & IFF_RUNNING) != 0};
    if (!one.address.empty() && !is_link_local(one.address)) found.push_back(std::move(one));
  }
  ::freeifaddrs(list);
  std::ranges::stable_partition(found, [](const Interface& one) { return !is_v6(one.address); });
  return found;
}

HostNetwork this_network() {
  HostNetwork network{.default_sources = {}, .interfaces = interfaces()};
  for (const char* anywhere : kAnywhere)
    if (auto source = address_towards(anywhere); source.ok()) network.default_sources.push_back(*source);
  return network;
}

Result<std::string> default_address(const HostNetwork& network) {
  for (const std::string& source : network.default_sources)
    if (!is_loopback(source) && !is_link_local(source)) return source;
  auto likelihood = [](const Interface& one) {
    return std::tuple(one.loopback, stays_inside(one), !one.carrier, is_v6(one.address));
  };
  auto best = std::ranges::min_element(network.interfaces, {}, likelihood);
  if (best == network.interfaces.end() || best->loopback)
    return not_found("no network interface is up; name one with --interface");
  return best->address;
}

Result<std::string> interface_address(const std::string& name) {
  std::string names;
  for (const Interface& one : interfaces()) {
    if (one.name == name) return one.address;
    if (names.find(one.name) == std::string::npos) names += (names.empty() ? "" : ", ") + one.name;
  }
  return not_found(format("--interface {}: no such interface with an address; there are: {}", name, names));
}

}  // namespace llm_dist::comm
