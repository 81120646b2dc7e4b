#include "launch/placement.h"

#include <gtest/gtest.h>

#include "tests/device/fake_system.h"

namespace llm_dist::launch {
namespace {

TEST(QuotaCpus, IsNoneWithoutAQuota) {
  device::FakeSystem system;
  EXPECT_EQ(quota_cpus(system.root()), 0);
  system.put("/proc/self/cgroup", "1:cpu:/job\n0::/service");
  system.put_group("service/cpu.max", "max 100000");
  system.put_group("cpu/job/cpu.cfs_quota_us", "-1");
  system.put_group("cpu/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota_cpus(system.root()), 0);
}

TEST(QuotaCpus, TheSmallestOfEveryLevelBinds) {
  device::FakeSystem system;
  system.put("/proc/self/cgroup", "0::/user.slice/run.service");
  system.put_group("cpu.max", "800000 100000");
  EXPECT_EQ(quota_cpus(system.root()), 8);
  system.put_group("user.slice/run.service/cpu.max", "150000 100000");
  EXPECT_EQ(quota_cpus(system.root()), 1.5);
  system.put_group("user.slice/cpu.max", "100000 200000");
  EXPECT_EQ(quota_cpus(system.root()), 0.5);
}

TEST(QuotaCpus, Version1) {
  device::FakeSystem system;
  system.put("/proc/self/cgroup", "4:cpu,cpuacct:/docker/x\n0::/");
  // In a container without a namespace of its own: the path is the host's, the mount is the container's
  // group.
  system.put_group("cpu/cpu.cfs_quota_us", "200000");
  system.put_group("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota_cpus(system.root()), 2);
  system.put_group("cpu/docker/x/cpu.cfs_quota_us", "50000");
  system.put_group("cpu/docker/x/cpu.cfs_period_us", "50000");
  EXPECT_EQ(quota_cpus(system.root()), 1);
}

// By rank, a letter a node.
std::vector<comm::HostInfo> nodes(std::string_view letters) {
  std::vector<comm::HostInfo> hosts;
  for (const char letter : letters) hosts.push_back({.hostname = std::string(1, letter), .boot_id = "same"});
  return hosts;
}

TEST(RanksPerNode, DivideEachNode) {
  EXPECT_EQ(ranks_per_node(nodes("aaaa")), 4);
  EXPECT_EQ(ranks_per_node(nodes("aaaabbbb")), 4);
  EXPECT_EQ(ranks_per_node(nodes("aabbbb")), 2);
  EXPECT_EQ(ranks_per_node(nodes("aaaabb")), 2);
  EXPECT_EQ(ranks_per_node(nodes("aaabbbbb")), 1);
  EXPECT_EQ(ranks_per_node(nodes("abab")), 1) << "mpirun --map-by node";
}

TEST(GroupAcrossNodes, IsNamed) {
  EXPECT_EQ(group_across_nodes(nodes("aabbbb"), 2), "");
  EXPECT_EQ(group_across_nodes(nodes("aaabbb"), 1), "");
  EXPECT_EQ(group_across_nodes(nodes("aaaabb"), 3), "ranks 3 to 5: 3 is on a, 4 on b");
  EXPECT_EQ(group_across_nodes(nodes("aabb"), 4), "ranks 0 to 3: 1 is on a, 2 on b");
}

TEST(ByCore, SocketsAndTheThreadsOfACoreStayTogether) {
  device::FakeSystem system;
  // Two sockets of two cores with two threads each, numbered as is usual: 0-3 are first threads.
  for (int cpu = 0; cpu < 8; ++cpu) {
    const std::string folder = format("/sys/devices/system/cpu/cpu{}/topology/", cpu);
    system.put(folder + "physical_package_id", std::to_string(cpu % 4 / 2));
    system.put(folder + "core_id", std::to_string(cpu % 2));
  }
  EXPECT_EQ(by_core({0, 1, 2, 3, 4, 5, 6, 7}, system.root()), (std::vector<int>{0, 4, 1, 5, 2, 6, 3, 7}));
  EXPECT_EQ(by_core({1, 2, 6}, system.root()), (std::vector<int>{1, 2, 6}));
  EXPECT_EQ(by_core({8, 9, 11}, system.root()), (std::vector<int>{8, 9, 11}));
}

TEST(CpuShares, RanksThatHaveTheSameCpusShareThem) {
  using Cpus = std::vector<int>;
  const comm::HostInfo here{.hostname = "a", .boot_id = "1"};
  const comm::HostInfo there{.hostname = "b", .boot_id = "2"};
  const Cpus part = {2, 3, 4, 5, 6}, other = {8, 9};
  // A world that was bound as a whole, to a part of its host: a slot's, a container's.
  const std::vector<comm::HostInfo> hosts = {here, there, here, here};
  const std::vector<Cpus> allowed = {part, part, part, other};
  EXPECT_EQ(share_of(hosts, allowed, 0).cpus, (Cpus{2, 3}));
  EXPECT_EQ(share_of(hosts, allowed, 2).cpus, (Cpus{4, 5}));
  EXPECT_EQ(share_of(hosts, allowed, 2).threads, 2);
  EXPECT_TRUE(share_of(hosts, allowed, 2).is_cut);
  for (int rank : {1, 3}) {
    EXPECT_EQ(share_of(hosts, allowed, rank).cpus, allowed[static_cast<size_t>(rank)]);
    EXPECT_EQ(share_of(hosts, allowed, rank).threads, rank == 1 ? 5 : 2);
    EXPECT_FALSE(share_of(hosts, allowed, rank).is_cut) << "bound to CPUs that no other rank has";
  }
}

TEST(CpuShares, MoreRanksThanCpusHaveAThreadEach) {
  const std::vector<comm::HostInfo> hosts(3);
  const std::vector<std::vector<int>> allowed(3, {0, 1});
  EXPECT_EQ(share_of(hosts, allowed, 2).cpus, (std::vector<int>{0, 1}));
  EXPECT_EQ(share_of(hosts, allowed, 2).threads, 1);
  EXPECT_FALSE(share_of(hosts, allowed, 2).is_cut);
}

DeviceCard sent(DeviceCard card) { return unpack_device_card(pack(card)); }

TEST(SharedDevices, EachRankHasAGpuOfItsOwn) {
  const DeviceCard cpu = sent({.name = "cpu", .description = ""});
  const DeviceCard a = sent({.name = "cuda:0", .description = "NVIDIA H200 (GPU-a)"});
  const DeviceCard b = sent({.name = "cuda:0", .description = "NVIDIA H200 (GPU-b)"});
  const DeviceCard a_again = sent({.name = "cuda:1", .description = "NVIDIA H200 (GPU-a)"});
  EXPECT_TRUE(refuse_shared_devices(std::vector{cpu, cpu}).ok());
  EXPECT_TRUE(refuse_shared_devices(std::vector{a, b}).ok());
  EXPECT_EQ(refuse_shared_devices(std::vector{a, b, a_again}).message(),
            "ranks 0 and 2 would share NVIDIA H200 (GPU-a)");
  EXPECT_EQ(refuse_shared_devices(std::vector{b, cpu}).message(),
            "rank 0 runs on NVIDIA H200 (GPU-b) and rank 1 on cpu: choose with --device");
}

}  // namespace
}  // namespace llm_dist::launch
