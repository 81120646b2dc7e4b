#include "launch/doctor_checks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/format.h"

namespace llm_dist::launch {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// Two hosts of two ranks where nothing is wrong.
std::vector<RankFacts> healthy() {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.push_back(
        {.rank = rank,
         .host = rank < 2 ? "a" : "b",
         .local_rank = rank % 2,
         .local_size = 2,
         .version = "1.0",
         .mpi = "Open MPI v4.1.4",
         .interfaces = {{.name = "ib0", .address = "10.0.0.1", .megabits = 100000}},
         .shm_free_bytes = 8 * kGiB,
         .memlock_bytes = -1,
         .open_files = 65536,
         .memory_free_bytes = 64 * kGiB,
         .one_rank_bytes = 64 * kGiB,
         .memory_total_bytes = 64 * kGiB,
         .cpus = {0, 1, 2, 3},
         .machine_cpus = 4,
         .model = {.path = "/m", .exists = true, .file_system = "lustre", .bytes = kGiB},
         .cache = {.path = "/home/u/.cache", .exists = true, .writable = true, .file_system = "nfs"}});
  return ranks;
}

Measured measured() {
  return {.launcher = "Slurm step",
          .rendezvous = "tcp",
          .channel = "shared memory and sockets",
          .barrier_us = 100,
          .clock_skew_seconds = {0, 0.001, -0.002, 0.003},
          .clock_uncertainty_seconds = 0.0001,
          .device = "cpu",
          .all_reduce_small_us = 50,
          .all_reduce_bytes_per_second = 1e9};
}

// The one finding of a check that is no "ok"; fails when there are others.
Finding only_trouble(const std::vector<RankFacts>& ranks,
                     const Measured& what = measured(),
                     bool allow_idle = false) {
  std::vector<Finding> findings = examine(ranks, what, allow_idle);
  std::erase_if(findings, [](const Finding& finding) { return finding.severity <= Severity::kNote; });
  EXPECT_EQ(findings.size(), 1u);
  if (findings.size() != 1) return {};
  EXPECT_FALSE(findings[0].advice.empty()) << findings[0].message;
  return findings[0];
}

TEST(Doctor, AHealthyLaunchHasNothingToDo) {
  EXPECT_LE(worst(examine(healthy(), measured(), false)), Severity::kNote);
}

struct Trouble {
  const char* name;
  Severity severity;
  const char* check;
  const char* where;  // of ranks {1}, or of everybody
  void (*inflict)(RankFacts&);
};

class OneRanksTrouble : public testing::TestWithParam<Trouble> {};

TEST_P(OneRanksTrouble, IsFoundWithItsRankAndAdvice) {
  const Trouble& trouble = GetParam();
  std::vector<RankFacts> ranks = healthy();
  trouble.inflict(ranks[1]);
  Finding finding = only_trouble(ranks);
  EXPECT_EQ(finding.severity, trouble.severity);
  EXPECT_EQ(finding.check, trouble.check);
  EXPECT_EQ(finding.where, trouble.where);
}

INSTANTIATE_TEST_SUITE_P(
    Doctor,
    OneRanksTrouble,
    testing::Values(
        Trouble{
            "Shm", Severity::kWarning, "shm", "ranks 1", [](RankFacts& r) { r.shm_free_bytes = 1 << 20; }},
        Trouble{"NoShm", Severity::kError, "shm", "ranks 1", [](RankFacts& r) { r.shm_free_bytes = -1; }},
        Trouble{"Memlock",
                Severity::kWarning,
                "memlock",
                "ranks 1",
                [](RankFacts& r) { r.memlock_bytes = 65536; }},
        Trouble{"OpenFiles",
                Severity::kWarning,
                "open files",
                "ranks 1",
                [](RankFacts& r) { r.open_files = 1024; }},
        Trouble{"Memory",
                Severity::kError,
                "memory",
                "ranks 1",
                [](RankFacts& r) { r.memory_free_bytes = kGiB; }},
        Trouble{"AddressSpace",
                Severity::kError,
                "memory",
                "ranks 1",
                [](RankFacts& r) { r.one_rank_bytes = kGiB / 2; }},
        Trouble{
            "NoModel", Severity::kError, "model", "ranks 1", [](RankFacts& r) { r.model.exists = false; }},
        Trouble{"OtherModel", Severity::kError, "model", "ranks 1", [](RankFacts& r) { r.model.bytes -= 1; }},
        Trouble{
            "Cache", Severity::kWarning, "cache", "ranks 1", [](RankFacts& r) { r.cache.writable = false; }},
        Trouble{"Alone", Severity::kError, "network", "ranks 1", [](RankFacts& r) { r.interfaces.clear(); }},
        Trouble{"Slow",
                Severity::kWarning,
                "network",
                "ranks 1",
                [](RankFacts& r) { r.interfaces[0].megabits = 1000; }},
        Trouble{"HiddenGpus",
                Severity::kError,
                "gpus",
                "ranks 1",
                [](RankFacts& r) { r.allocated_gpus = 2, r.gpu_missing = "no driver"; }},
        Trouble{"UnusableGpu",
                Severity::kError,
                "gpus",
                "ranks 1",
                [](RankFacts& r) { r.gpus_visible = 8, r.gpu_trouble = "built for other ones"; }},
        Trouble{"Idle", Severity::kError, "idle", "ranks 1", [](RankFacts& r) { r.idle = "2 GPUs"; }}),
    [](const auto& instance) { return instance.param.name; });

TEST(Doctor, RanksBoundToTheSameCpuAreNamed) {
  std::vector<RankFacts> ranks = healthy();
  ranks[2].cpus = {0, 1};
  ranks[3].cpus = {1, 2};
  Finding finding = only_trouble(ranks);
  EXPECT_EQ(finding.check, "binding");
  EXPECT_EQ(finding.where, "b");
  EXPECT_NE(finding.message.find("2-3"), std::string::npos) << finding.message;
  ranks[3].cpus = {2, 3};
  EXPECT_LE(worst(examine(ranks, measured(), false)), Severity::kNote);
}

TEST(Doctor, MoreRanksThanCpus) {
  std::vector<RankFacts> ranks = healthy();
  for (RankFacts& rank : ranks) rank.cpus = {0}, rank.machine_cpus = 1;
  std::vector<Finding> findings = examine(ranks, measured(), false);
  EXPECT_EQ(std::count_if(
                findings.begin(),
                findings.end(),
                [](const Finding& f) { return f.check == "binding" && f.severity == Severity::kWarning; }),
            2);
}

TEST(Doctor, UnevenHosts) {
  std::vector<RankFacts> ranks = healthy();
  ranks.pop_back();
  ranks[2].local_size = 1;
  Measured what = measured();
  what.clock_skew_seconds.pop_back();
  EXPECT_EQ(only_trouble(ranks, what).check, "ranks");
}

TEST(Doctor, AnotherVersionOnOneHost) {
  std::vector<RankFacts> ranks = healthy();
  ranks[3].version = "0.9";
  std::vector<Finding> findings = examine(ranks, measured(), false);
  EXPECT_EQ(worst(findings), Severity::kError);
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.check == "version" && f.where == "ranks 3";
  }));
}

TEST(Doctor, AClockThatIsAway) {
  Measured what = measured();
  what.clock_skew_seconds[2] = -7.5;
  Finding finding = only_trouble(healthy(), what);
  EXPECT_EQ(finding.check, "clock");
  EXPECT_EQ(finding.where, "b");
  EXPECT_NE(finding.message.find("7500 ms"), std::string::npos) << finding.message;
}

TEST(Doctor, WrongSumsAreAnError) {
  Measured what = measured();
  what.all_reduce_error = "all-reduce gives 3 where 10 is right";
  EXPECT_EQ(only_trouble(healthy(), what).severity, Severity::kError);
}

TEST(Doctor, ADeviceThatWasAskedForAndIsNotThereIsAnError) {
  Measured what = measured();
  what.device_error = "no GPU is visible to this process";
  const Finding finding = only_trouble(healthy(), what);
  EXPECT_EQ(finding.severity, Severity::kError);
  EXPECT_EQ(finding.check, "device");
}

TEST(Doctor, IdleNodesMayBeAllowed) {
  std::vector<RankFacts> ranks = healthy();
  ranks[0].idle = "a node";
  EXPECT_LE(worst(examine(ranks, measured(), true)), Severity::kNote);
}

TEST(Doctor, EqualFindingsOfSeveralRanksAreOne) {
  std::vector<RankFacts> ranks = healthy();
  for (int r : {0, 1, 3}) ranks[static_cast<size_t>(r)].open_files = 256;
  EXPECT_EQ(only_trouble(ranks).where, "ranks 0-1, 3");
}

}  // namespace
}  // namespace llm_dist::launch
