#include "comm/rank_discovery.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/mpi_loader.h"
#include "comm/world.h"

namespace llm_dist::comm {
namespace {

RankInfo discover(const Environment& environment, const RankFlags& flags = {}) {
  auto info = discover_ranks(flags, environment);
  CHECK(info.ok(), "{}", info.status().to_string());
  return *info;
}

void expect_ranks(
    const RankInfo& info, int rank, int size, int local_rank, int local_size, RankSource source) {
  EXPECT_EQ(info.rank, rank);
  EXPECT_EQ(info.size, size);
  EXPECT_EQ(info.local_rank, local_rank);
  EXPECT_EQ(info.local_size, local_size);
  EXPECT_EQ(info.source, source) << to_string(info.source);
}

const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                              {"PMIX_RANK", "5"}};
const Environment kSlurmStep = {{"SLURM_STEP_ID", "0"},
                                {"SLURM_NTASKS", "9"},
                                {"SLURM_STEP_NUM_TASKS", "7"},
                                {"SLURM_PROCID", "6"},
                                {"SLURM_LOCALID", "0"},
                                {"SLURM_NODEID", "3"},
                                {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                                {"PMIX_RANK", "6"}};

TEST(RankDiscovery, NothingSetIsOneProcess) { expect_ranks(discover({}), 0, 1, 0, 1, RankSource::kSingle); }

TEST(RankDiscovery, FlagsWinOverEverything) {
  expect_ranks(discover(kOpenMpi, {.rank = 1, .size = 2}), 1, 2, 0, 1, RankSource::kFlags);
  expect_ranks(
      discover({}, {.rank = 3, .size = 4, .local_rank = 1, .local_size = 2}), 3, 4, 1, 2, RankSource::kFlags);
}

TEST(RankDiscovery, OpenMpiWinsOverTheSlurmStepThatStartedItsDaemons) {
  Environment both = kSlurmStep;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  expect_ranks(discover(both), 5, 8, 1, 4, RankSource::kOpenMpi);
}

TEST(RankDiscovery, ASlurmStepCountsItsOwnTasks) {
  expect_ranks(discover(kSlurmStep), 6, 7, 0, 1, RankSource::kSlurmStep);
  Environment second_node = kSlurmStep;
  second_node["SLURM_PROCID"] = "3";
  second_node["SLURM_LOCALID"] = "1";
  second_node["SLURM_NODEID"] = "1";
  expect_ranks(discover(second_node), 3, 7, 1, 2, RankSource::kSlurmStep);
}

// What sbatch gives its script, where a plain `llm-dist serve` is one process.
TEST(RankDiscovery, ABatchScriptIsNoStep) {
  Environment batch = {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "17"}};
  expect_ranks(discover(batch), 0, 1, 0, 1, RankSource::kSingle);
  Environment special = kSlurmStep;
  special.erase("PMIX_RANK");
  special["SLURM_STEP_ID"] = "4294967291";
  expect_ranks(discover(special), 0, 1, 0, 1, RankSource::kSingle);
}

TEST(RankDiscovery, Torchrun) {
  Environment torchrun = {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}};
  expect_ranks(discover(torchrun), 3, 4, 1, 2, RankSource::kTorchrun);
  torchrun.erase("WORLD_SIZE");  // RANK alone may mean anything
  expect_ranks(discover(torchrun), 0, 1, 0, 1, RankSource::kSingle);
}

TEST(RankDiscovery, ContradictionsAreRefusedByName) {
  auto message = [](const Environment& environment, const RankFlags& flags = {}) {
    auto info = discover_ranks(flags, environment);
    EXPECT_EQ(info.status().code(), StatusCode::kInvalidArgument);
    return info.status().message();
  };
  Environment broken = kOpenMpi;
  broken["OMPI_COMM_WORLD_SIZE"] = "5";
  EXPECT_EQ(message(broken), "Open MPI says rank 5 of 5 ranks");
  broken["OMPI_COMM_WORLD_SIZE"] = "8x";
  EXPECT_EQ(message(broken), "OMPI_COMM_WORLD_SIZE=8x is not a number");
  broken.erase("OMPI_COMM_WORLD_SIZE");
  EXPECT_EQ(message(broken), "OMPI_COMM_WORLD_SIZE is not set");
  EXPECT_NE(message({}, {.rank = 1}).find("together"), std::string::npos);
  EXPECT_NE(message({{"PMIX_RANK", "1"}}).find("PMIX_RANK"), std::string::npos);
}

TEST(Hosts, LocalRanksFollowHostAndKernel) {
  std::vector<HostInfo> hosts = {{"a", "x", 1}, {"b", "y", 2}, {"a", "x", 3}, {"a", "z", 4}};
  number_local_ranks(hosts);
  EXPECT_EQ(hosts[0].local_size, 2);
  EXPECT_EQ(hosts[2].local_rank, 1);
  EXPECT_EQ(hosts[1].local_size, 1);
  EXPECT_EQ(hosts[3].local_rank, 0);
}

TEST(MakeWorld, OneProcessNeedsNoModule) {
  auto world = make_world({}, {});
  ASSERT_TRUE(world.ok());
  EXPECT_TRUE((*world)->barrier(Deadline::after_seconds(1)).ok());
  int me[] = {0};
  auto comm = (*world)->make_communicator(me, "tp");
  ASSERT_TRUE(comm.ok());
  EXPECT_EQ((*comm)->info().size, 1);
  EXPECT_TRUE((*world)->close(Deadline::after_seconds(1)).ok());
}

TEST(MakeWorld, SaysWhatSeveralRanksNeed) {
  setenv("LLM_DIST_MODULE_DIR", "/no/such/folder", 1);
  Status status = make_world({.rank = 1, .size = 4, .source = RankSource::kOpenMpi}, {}).status();
  unsetenv("LLM_DIST_MODULE_DIR");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  for (const char* part : {"4 ranks (Open MPI) need MPI", "/no/such/folder", "libopenmpi-dev"})
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

}  // namespace
}  // namespace llm_dist::comm
