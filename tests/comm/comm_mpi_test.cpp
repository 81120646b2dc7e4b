// The conformance suite over MPI: run by mpirun, every rank runs every test.
#include <gtest/gtest.h>
#include <unistd.h>

#include <iostream>
#include <thread>

#include "comm/world.h"
#include "src/base/log.h"
#include "tests/comm/allocation_count.h"
#include "tests/comm/conformance.h"
#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

// The one world of this process, which MPI allows only once.
std::unique_ptr<World>& the_world() {
  static std::unique_ptr<World> world;
  return world;
}

class MpiConformance : public testing::TestWithParam<ConformanceCase> {};

TEST_P(MpiConformance, Case) { GetParam().run(*the_world()); }

INSTANTIATE_TEST_SUITE_P(Mpi,
                         MpiConformance,
                         testing::ValuesIn(conformance_cases()),
                         [](const auto& instance) { return case_name(instance.param); });

TEST(Mpi, ASteadyStateAllocatesNothing) {
  GroupUnderTest group = make_group(*the_world());
  HostTensor<BFloat16> small(576);
  HostTensor<BFloat16> large(200000);
  HostTensor<BFloat16> parts(576 * group.size());
  auto step = [&] {
    group.comm->all_reduce(small.view(), ReduceOp::kSum, *group.stream);
    group.comm->all_reduce(large.view(), ReduceOp::kSum, *group.stream);
    group.comm->all_gather(small.view(), parts.view(), *group.stream);
    group.comm->reduce_scatter(parts.view(), small.view(), ReduceOp::kSum, *group.stream);
    group.comm->broadcast(small.view(), 0, *group.stream);
  };
  step();
  ASSERT_TRUE(group.synchronize().ok());
  int64_t before = num_allocations();
  for (int i = 0; i < 20; ++i) step();
  ASSERT_TRUE(group.synchronize().ok());
  EXPECT_EQ(num_allocations() - before, 0);
}

TEST(Mpi, RanksInDifferentCallsRunIntoTheDeadline) {
  GroupUnderTest group = make_group(*the_world(), "mixed-up", 0.3);
  HostTensor<float> data(8);
  HostTensor<float> all(8 * group.size());
  if (group.rank() == 0) group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  if (group.rank() != 0) group.comm->all_gather(data.view(), all.view(), *group.stream);
  EXPECT_EQ(group.synchronize(10).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(the_world()->barrier(Deadline::after_seconds(10)).ok());
}

TEST(Mpi, AMessageOfAnotherLengthIsAnError) {
  GroupUnderTest group = make_group(*the_world(), "lengths", 5);
  HostTensor<float> data(group.rank() == 0 ? 8 : 9);
  group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  EXPECT_EQ(group.synchronize(10).code(), StatusCode::kInternal);
  EXPECT_TRUE(the_world()->barrier(Deadline::after_seconds(10)).ok());
}

TEST(Mpi, RanksThatMakeDifferentGroupsAreTold) {
  std::string name = the_world()->rank_info().rank == 0 ? "one" : "other";
  auto comm = the_world()->make_communicator(all_ranks(*the_world()), name);
  EXPECT_EQ(comm.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(the_world()->barrier(Deadline::after_seconds(10)).ok());
}

// What rank 0 ends, everyone leaves at once, without MPI_Finalize. mpirun calls that a failure: the test
// looks for the line that the last rank prints.
int abort_the_world() {
  World& world = *the_world();
  GroupUnderTest group = make_group(world, "tp", 600);
  HostTensor<float> data(100);
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
  bool in_time = seconds_between(begin, Clock::now()) < 1.5;
  std::string line = format("rank {} left {}: {}, {}, {}\n",
                            group.rank(),
                            in_time ? "in time" : "late",
                            barrier.message(),
                            stream.message(),
                            closed.message());
  std::cout << line << std::flush;
  std::this_thread::sleep_for(
      std::chrono::milliseconds(500));  // mpirun kills the others when the first is gone
  _exit(0);
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) {
  using namespace llm_dist;
  testing::InitGoogleTest(&argc, argv);
  auto info = comm::discover_ranks({}, comm::read_environment());
  CHECK(info.ok(), "{}", info.status().to_string());
  if (info->size == 1) {
    std::cerr << "start with: mpirun -np 2 comm_mpi_test\n";
    return 2;
  }
  auto world = comm::make_world(*info, {});
  CHECK(world.ok(), "{}", world.status().to_string());
  comm::the_world() = std::move(world).value();
  if (argc > 1 && std::string_view(argv[1]) == "--abort-world") return comm::abort_the_world();
  // One report, and whatever fails anywhere.
  if (info->rank != 0)
    delete testing::UnitTest::GetInstance()->listeners().Release(
        testing::UnitTest::GetInstance()->listeners().default_result_printer());
  int failed = RUN_ALL_TESTS();
  Status closed = comm::the_world()->close(Deadline::after_seconds(20));
  comm::the_world().reset();
  if (!closed.ok()) log_error("closing: {}", closed.to_string());
  return failed != 0 || !closed.ok() ? 1 : 0;
}
