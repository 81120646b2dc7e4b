// Which address a machine offers to hosts of which it knows nothing.
#include "comm/host/own_address.h"

#include <gtest/gtest.h>

namespace llm_dist::comm {
namespace {

const Interface kLoopback{.name = "lo", .address = "127.0.0.1", .loopback = true};
const Interface kLoopbackV6{.name = "lo", .address = "::1", .loopback = true};
const Interface kDocker{.name = "docker0", .address = "172.17.0.1"};
const Interface kLibvirt{.name = "virbr0", .address = "192.168.122.1"};
const Interface kComposed{.name = "br-1f0c3a5b7d9e", .address = "172.18.0.1"};
const Interface kCard{.name = "eno1", .address = "10.0.0.5"};
const Interface kCardV6{.name = "eno1", .address = "fd00::5"};
const Interface kUnplugged{.name = "eno2", .address = "10.1.0.5", .carrier = false};

std::string chosen(const HostNetwork& network) {
  auto address = default_address(network);
  return address.ok() ? *address : address.status().to_string();
}

TEST(DefaultAddress, IsTheSourceOfADefaultRoute) {
  const std::vector<Interface> all = {kLoopback, kDocker, kCard, kCardV6};
  EXPECT_EQ(chosen({.default_sources = {"10.0.0.5", "fd00::5"}, .interfaces = all}), "10.0.0.5");
  EXPECT_EQ(chosen({.default_sources = {"fd00::5"}, .interfaces = all}), "fd00::5");
}

TEST(DefaultAddress, ASourceThatOtherHostsCannotUseIsNone) {
  EXPECT_EQ(chosen({.default_sources = {"127.0.0.1", "fe80::5"}, .interfaces = {kLoopback, kCardV6}}),
            "fd00::5");
}

TEST(DefaultAddress, WithoutARouteInterfacesOfTheHostsOwnGuestsComeLast) {
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kLoopback, kDocker, kLibvirt, kComposed, kCard}}),
            "10.0.0.5");
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kLoopback, kDocker, kLoopbackV6, kCardV6}}),
            "fd00::5");
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kLoopback, kDocker, kUnplugged}}), "10.1.0.5");
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kLoopback, kDocker}}), "172.17.0.1");
}

TEST(DefaultAddress, AnInterfaceWithACableComesBeforeOneWithout) {
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kUnplugged, kCard}}), "10.0.0.5");
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kUnplugged, kCardV6}}), "fd00::5");
  EXPECT_EQ(chosen({.default_sources = {}, .interfaces = {kCardV6, kCard}}), "10.0.0.5");
}

TEST(DefaultAddress, TheLoopbackIsNone) {
  auto address = default_address({.default_sources = {}, .interfaces = {kLoopback, kLoopbackV6}});
  EXPECT_EQ(address.status().code(), StatusCode::kNotFound);
  EXPECT_NE(address.status().message().find("--interface"), std::string::npos);
}

TEST(InterfaceAddress, IsThatOfTheNamedOne) {
  auto address = interface_address("lo");
  ASSERT_TRUE(address.ok()) << address.status().to_string();
  EXPECT_EQ(*address, "127.0.0.1");
  EXPECT_EQ(interface_address("no-such-card").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace llm_dist::comm
