// Attempts as real processes, also where this process cannot look at them.
#include "cluster/local_launcher.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "cluster/client_room.h"
#include "cluster/item_client.h"
#include "src/base/clock.h"
#include "tests/cluster/store_fixture.h"
#include "tests/http/no_descriptors.h"

namespace llm_dist::cluster::testing {
namespace {

class LocalLauncher : public ::testing::Test {
 protected:
  // Its keeper is a program that does `script`, whatever it is asked for.
  void use(const std::string& script, std::optional<rlimit> open_files = {}) {
    const std::string program = folder_.file("keeper");
    std::ofstream(program) << "#!/bin/sh\n" << script << "\n";
    ASSERT_EQ(chmod(program.c_str(), S_IRWXU), 0);
    launcher_ = make_local_launcher(
        {.program = program, .store_path = folder_.file("store"), .slots = slots_, .open_files = open_files});
  }
  void TearDown() override { EXPECT_TRUE(launcher_->sweep(mark_, attempt_).ok()); }
  Result<std::string> launch() {
    return launcher_->launch({.mark = mark_, .folder = attempt_, .arguments = {}});
  }
  bool ends(const std::string& handle) {
    for (Deadline patience = Deadline::after_seconds(60); !patience.expired();) {
      if (!launcher_->observe(handle, attempt_).value().running) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  static void wait_for_file(const std::string& name) {
    Deadline patience = Deadline::after_seconds(60);
    while (!std::filesystem::exists(name) && !patience.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  TemporaryFolder folder_;
  SlotResources slots_{};
  std::string attempt_ = folder_.file("attempt");
  std::string mark_ = attempt_;
  std::unique_ptr<Launcher> launcher_;
};

TEST_F(LocalLauncher, WithoutDescriptorsNothingIsTakenForEnded) {
  use("exec sleep 1000");
  std::string handle = launch().value();
  EXPECT_TRUE(launcher_->observe(handle, attempt_).value().running);
  {
    http::NoDescriptors none;
    EXPECT_FALSE(launcher_->observe(handle, attempt_).ok());
    EXPECT_FALSE(launcher_->stop(handle, StopMode::kKill).ok());
    EXPECT_FALSE(launcher_->sweep(mark_, attempt_).ok());
    EXPECT_FALSE(processes_with(kMarkVariable, mark_).ok());
  }
  EXPECT_TRUE(launcher_->observe(handle, attempt_).value().running);
  EXPECT_TRUE(launcher_->stop(handle, StopMode::kTerminate).ok());
  EXPECT_TRUE(ends(handle));
  EXPECT_FALSE(launcher_->observe(handle, attempt_).value().exit_code);
  std::ofstream(exit_file_of(attempt_)) << "7\n";
  EXPECT_EQ(launcher_->observe(handle, attempt_).value().exit_code, 7);
  http::NoDescriptors none;
  EXPECT_FALSE(launcher_->observe(handle, attempt_).ok()) << "its exit code is not lost";
}

TEST_F(LocalLauncher, WhatItCouldNotFindAgainIsEnded) {
  use("sleep 1000 & wait");
  Status launched;
  {
    http::NoDescriptors none;
    launched = launch().status();
  }
  EXPECT_NE(launched.message().find("/proc/"), std::string::npos) << launched.to_string();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(processes_with(kMarkVariable, mark_).value().empty());
}

TEST_F(LocalLauncher, WhatItStartsHasTheLimitThatItIsTold) {
  std::string seen = folder_.file("seen");
  use("sleep 0.3; ulimit -Sn > " + seen + ".part; mv " + seen + ".part " + seen + "; exec sleep 1000",
      rlimit{.rlim_cur = 77, .rlim_max = 99});
  ASSERT_TRUE(launch().ok());
  wait_for_file(seen);
  int limit = 0;
  std::ifstream(seen) >> limit;
  EXPECT_EQ(limit, 77);
}

// Each slot has its part of the cores and one GPU, from the keeper's first instruction on.
TEST_F(LocalLauncher, WhatItStartsSeesWhatItsSlotsAre) {
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  std::vector<int> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &mine)) cores.push_back(cpu);
  }
  std::string seen = folder_.file("seen");
  slots_ = {.num_slots = static_cast<int>(cores.size()), .gpus = {"GPU-a", "GPU-b", "GPU-c"}, .cpus = cores};
  use("{ echo $CUDA_VISIBLE_DEVICES; awk '/Cpus_allowed_list/ {print $2}' /proc/self/status; } > " + seen +
      ".part; mv " + seen + ".part " + seen);
  const int last = slots_.num_slots - 1;
  ASSERT_TRUE(launcher_->launch({.mark = mark_, .folder = attempt_, .arguments = {}, .slots = {last}}).ok());
  wait_for_file(seen);
  std::string gpus, allowed;
  std::ifstream(seen) >> gpus >> allowed;
  EXPECT_EQ(gpus, slots_.gpus[static_cast<size_t>(last) % 3]);
  EXPECT_EQ(allowed, std::to_string(cores.back()));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_TRUE(CPU_EQUAL(&mine, &after));
}

TEST(ClientRoom, LeavesTheProcessItsOwn) {
  EXPECT_EQ(clients_within(20'000, 300), 9'850u);
  EXPECT_EQ(clients_within(1024, 384), 320u);
  EXPECT_EQ(clients_within(128, 384), 16u);
  EXPECT_EQ(clients_within(1, 384), 1u);
  EXPECT_GT(clients_within(RLIM_INFINITY, 384), 1'000'000u);
}

TEST(ClientRoom, RequestsOfBatchesLeaveSomeToOthers) {
  EXPECT_EQ(items_within(1024, 256, 1), 512u - kItemClientFiles);
  EXPECT_EQ(items_within(1024, 256, 8), 64u - kItemClientFiles);
  EXPECT_EQ(items_within(1024, 256, 4096), 1u);
  EXPECT_EQ(items_within(64, 256, 1), 1u);
  EXPECT_GT(items_within(RLIM_INFINITY, 256, 4096), 1'000'000u);
  rlim_t all = 256 + 8 * (items_within(1024, 256, 8) + kItemClientFiles);
  EXPECT_EQ(clients_within(1024, all), 128u);
}

}  // namespace
}  // namespace llm_dist::cluster::testing
