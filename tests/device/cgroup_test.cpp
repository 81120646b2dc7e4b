#include "src/device/cpu/cgroup.h"

#include <gtest/gtest.h>

#include "src/device/cpu/cpu_backend.h"
#include "tests/device/fake_system.h"

namespace llm_dist::device {
namespace {

constexpr int64_t kMib = 1 << 20;

std::string mib(int64_t count) { return std::to_string(count * kMib); }

class CgroupTest : public ::testing::Test {
 protected:
  CgroupTest() {
    system_.put("/proc/meminfo",
                "MemTotal:       67108864 kB\nMemFree:         1048576 kB\nMemAvailable:   33554432 kB");
  }

  void put_memory(const std::string& folder, int64_t limit_mib, int64_t used_mib, const std::string& stat) {
    system_.put_group(folder + "memory.max", mib(limit_mib));
    system_.put_group(folder + "memory.current", mib(used_mib));
    system_.put_group(folder + "memory.stat", stat);
  }
  void expect_memory(int64_t free_mib, int64_t total_mib) {
    MemoryInfo info = process_memory_info(system_.root());
    EXPECT_EQ(info.free_bytes, free_mib * kMib);
    EXPECT_EQ(info.total_bytes, total_mib * kMib);
  }

  FakeSystem system_;
};

TEST_F(CgroupTest, FoldersGoFromTheProcesssGroupToTheRoot) {
  system_.put("/proc/self/cgroup", "5:memory:/a/b\n4:cpu,cpuacct:/c\n0::/d");
  const std::string mount = system_.root() + "/sys/fs/cgroup";
  using Folders = std::vector<std::string>;
  EXPECT_EQ(cgroup_folders("memory", system_.root()),
            (Folders{mount + "/memory/a/b", mount + "/memory/a", mount + "/memory"}));
  EXPECT_EQ(cgroup_folders("cpu", system_.root()), (Folders{mount + "/cpu/c", mount + "/cpu"}));
  EXPECT_EQ(cgroup_folders("", system_.root()), (Folders{mount + "/d", mount}));
  EXPECT_EQ(cgroup_folders("pids", system_.root()), (Folders{mount + "/pids"}));
}

TEST_F(CgroupTest, WithoutALimitMemoryIsTheMachines) {
  expect_memory(32 << 10, 64 << 10);
  system_.put_group("memory.max", "max");
  system_.put_group("memory.current", mib(1));
  expect_memory(32 << 10, 64 << 10);
}

// A container that has read a model once, and twice: its pages are inactive, then active.
TEST_F(CgroupTest, PagesOfFilesAreFree) {
  system_.put("/proc/self/cgroup", "0::/");
  put_memory("", 1024, 1020, "anon 20971520\nfile 1038090240\ninactive_file " + mib(990));
  expect_memory(1024 - 30, 1024);
  put_memory("", 1024, 1020, "anon 20971520\nactive_file " + mib(800) + "\ninactive_file " + mib(190));
  expect_memory(1024 - 30, 1024);
  put_memory("", 1024, 1020, "inactive_file " + mib(1021));
  expect_memory(1024, 1024);
  put_memory("", 1024, 1030, "inactive_file 0");
  expect_memory(0, 1024);
}

TEST_F(CgroupTest, TheLevelWithTheLeastRoomBinds) {
  system_.put("/proc/self/cgroup", "0::/pod/container");
  put_memory("pod/container/", 1024, 100, "inactive_file 0");
  put_memory("pod/", 4096, 4000, "inactive_file 0");
  expect_memory(96, 1024);
  put_memory("pod/", 512, 100, "inactive_file 0");
  expect_memory(412, 512);
}

TEST_F(CgroupTest, Version1CountsTheGroupsBelow) {
  system_.put("/proc/self/cgroup", "4:memory:/job\n0::/");
  system_.put_group("memory/memory.limit_in_bytes", "9223372036854771712");
  system_.put_group("memory/memory.usage_in_bytes", mib(9000));
  system_.put_group("memory/job/memory.limit_in_bytes", mib(1024));
  system_.put_group("memory/job/memory.usage_in_bytes", mib(1020));
  system_.put_group(
      "memory/job/memory.stat",
      "inactive_file 0\nactive_file 0\ntotal_inactive_file " + mib(500) + "\ntotal_active_file " + mib(490));
  expect_memory(1024 - 30, 1024);
}

}  // namespace
}  // namespace llm_dist::device
