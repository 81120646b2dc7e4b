// The conformance suite over worlds of processes: over MPI under mpirun, or over TCP, where this program
// starts the ranks itself. Every rank runs every test.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "comm/bootstrap.h"
#include "comm/host/socket.h"
#include "src/base/log.h"
#include "tests/base/allocation_count.h"
#include "tests/comm/conformance.h"
#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

// The one world of this process: MPI allows only one.
std::unique_ptr<World>& the_world() {
  static std::unique_ptr<World> world;
  return world;
}

// As old as the world: a peer may still write what a test that gave up was to receive.
Site& the_site() {
  static Site site;
  return site;
}

class ProcessConformance : public testing::TestWithParam<ConformanceCase> {};

TEST_P(ProcessConformance, Case) { GetParam().run(*the_world(), the_site()); }

INSTANTIATE_TEST_SUITE_P(Processes,
                         ProcessConformance,
                         testing::ValuesIn(conformance_cases()),
                         [](const auto& instance) { return case_name(instance.param); });

// Over TCP a message may come before its receive; it waits in memory that is kept, until there is enough of
// it.
TEST(Processes, ASteadyStateAllocatesNothing) {
  GroupUnderTest group = make_group(*the_world(), the_site());
  bool over_tcp = group.comm->info().backend == "tcp";
  SiteTensor<BFloat16> small(the_site(), 576);
  SiteTensor<BFloat16> large(the_site(), 200000);
  SiteTensor<BFloat16> parts(the_site(), 576 * group.size());
  auto step = [&] {
    group.comm->all_reduce(small.view(), ReduceOp::kSum, *group.stream);
    group.comm->all_reduce(large.view(), ReduceOp::kSum, *group.stream);
    group.comm->all_gather(small.view(), parts.view(), *group.stream);
    group.comm->reduce_scatter(parts.view(), small.view(), ReduceOp::kSum, *group.stream);
    group.comm->broadcast(small.view(), 0, *group.stream);
  };
  for (int i = 0; i < (over_tcp ? 50 : 1); ++i) step();
  ASSERT_TRUE(group.synchronize().ok());
  int64_t before = num_allocations();
  for (int i = 0; i < 20; ++i) step();
  ASSERT_TRUE(group.synchronize().ok());
  EXPECT_LE(num_allocations() - before, over_tcp ? 10 : 0);
}

TEST(Processes, RanksInDifferentCallsRunIntoTheDeadline) {
  GroupUnderTest group = make_group(*the_world(), the_site(), "mixed-up", 0.3);
  SiteTensor<float> data(the_site(), 8);
  SiteTensor<float> all(the_site(), 8 * group.size());
  if (group.rank() == 0) group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  if (group.rank() != 0) group.comm->all_gather(data.view(), all.view(), *group.stream);
  EXPECT_EQ(group.synchronize(60).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(the_world()->barrier(Deadline::after_seconds(60)).ok());
}

TEST(Processes, AMessageOfAnotherLengthIsAnError) {
  GroupUnderTest group = make_group(*the_world(), the_site(), "lengths", 60);
  SiteTensor<float> data(the_site(), group.rank() == 0 ? 8 : 9);
  group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  EXPECT_EQ(group.synchronize(60).code(), StatusCode::kInternal);
  EXPECT_TRUE(the_world()->barrier(Deadline::after_seconds(60)).ok());
}

TEST(Processes, RanksThatMakeDifferentGroupsAreTold) {
  std::string name = the_world()->rank_info().rank == 0 ? "one" : "other";
  auto comm = the_world()->make_communicator(all_ranks(*the_world()), name);
  EXPECT_EQ(comm.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(the_world()->barrier(Deadline::after_seconds(60)).ok());
}

// What rank 0 ends, everyone leaves at once, without MPI_Finalize. mpirun calls that a failure: its test
// looks for the line that the last rank prints. Elsewhere the exit codes count.
int abort_the_world() {
  World& world = *the_world();
  GroupUnderTest group = make_group(world, the_site(), "tp", 600);
  Fd last(static_cast<int>(syscall(SYS_pidfd_open, world.hosts().back().pid, 0)));
  SiteTensor<float> data(the_site(), 100);
  TimePoint begin = Clock::now();
  if (group.rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    world.abort(unavailable("rank 0 had enough"));
  } else {
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  }
  Status barrier = world.barrier(Deadline::after_seconds(60));
  Status stream = group.rank() == 0 ? group.comm->poll() : group.synchronize(60);
  Status closed = world.close(Deadline::after_seconds(60));
  bool in_time = seconds_between(begin, Clock::now()) < 3;
  std::string line = format("rank {} left {}: {}, {}, {}\n",
                            group.rank(),
                            in_time ? "in time" : "late",
                            barrier.message(),
                            stream.message(),
                            closed.message());
  std::cout << line << std::flush;
  // mpirun kills the others when the first is gone: that is to be the one whose line counts.
  pollfd gone{last.get(), POLLIN, 0};
  if (group.rank() != group.size() - 1) poll(&gone, 1, 30'000);
  const std::string_view cause = "rank 0 had enough";
  const bool knows_why = barrier.message() == cause && stream.message() == cause && closed.message() == cause;
  _exit(in_time && knows_why ? 0 : 1);
}

// Forks `size` ranks that meet on the loopback; the return value in a rank.
Result<Bootstrap> become_tcp_rank(int size) {
  ASSIGN_OR_RETURN(Listener listener, listen_at("127.0.0.1"));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    pid_t pid = fork();
    if (pid == 0)
      return plan_bootstrap({.ranks = {.rank = rank, .size = size, .local_rank = rank, .local_size = size},
                             .master_port = listener.endpoint.port,
                             .listener_fd = rank == 0 ? dup(listener.fd.get()) : -1},
                            {});
    ranks.push_back(pid);
  }
  bool fine = true;
  for (pid_t pid : ranks) {
    int status = 0;
    waitpid(pid, &status, 0);
    fine = fine && status == 0;
  }
  _exit(fine ? 0 : 1);
}

Result<Bootstrap> become_rank(int argc, char** argv) {
  if (argc > 2 && std::string_view(argv[1]) == "--tcp-ranks") return become_tcp_rank(std::stoi(argv[2]));
  return plan_bootstrap({}, read_environment());
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) {
  using namespace llm_dist;
  testing::InitGoogleTest(&argc, argv);
  auto bootstrap = comm::become_rank(argc, argv);
  CHECK(bootstrap.ok(), "{}", bootstrap.status().to_string());
  const comm::RankInfo& info = bootstrap->ranks;
  if (info.size == 1) {
    std::cerr << "start with: mpirun -np 2 comm_process_test, or comm_process_test --tcp-ranks 2\n";
    return 2;
  }
  auto world = comm::make_world(*bootstrap, {});
  CHECK(world.ok(), "{}", world.status().to_string());
  comm::the_world() = std::move(world).value();
  if (std::string_view(argv[argc - 1]) == "--abort-world") return comm::abort_the_world();
  // One report, and whatever fails anywhere.
  if (info.rank != 0)
    delete testing::UnitTest::GetInstance()->listeners().Release(
        testing::UnitTest::GetInstance()->listeners().default_result_printer());
  int failed = RUN_ALL_TESTS();
  Status closed = comm::the_world()->close(Deadline::after_seconds(20));
  comm::the_world().reset();
  if (!closed.ok()) log_error("closing: {}", closed.to_string());
  return failed != 0 || !closed.ok() ? 1 : 0;
}
