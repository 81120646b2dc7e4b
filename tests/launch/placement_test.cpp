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
