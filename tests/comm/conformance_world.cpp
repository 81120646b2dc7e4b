#include <algorithm>
#include <cmath>
#include <thread>

#include "src/device/cpu/cpu_stream.h"
#include "tests/comm/conformance.h"
#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

// A cycle: everyone sends large tensors to the next rank and receives from the previous one, each direction
// over a communicator and a stream of its own.
void a_ring_over_two_communicators_flows(World& world, Site& site) {
  constexpr int64_t kElements = 200000;
  int size = world.rank_info().size;
  std::vector<GroupUnderTest> edges;  // edge e leads from rank e to rank e + 1
  for (int e = 0; e < size; ++e) {
    int ranks[] = {e, (e + 1) % size};
    if (world.rank_info().rank == ranks[0] || world.rank_info().rank == ranks[1])
      edges.push_back(make_group(world, site, ranks, "edge"));
  }
  auto out = SiteTensor<float>::known(site, world.rank_info().rank, kElements);
  for (int repeat = 0; repeat < 3; ++repeat) {
    SiteTensor<float> in(site, kElements);
    for (GroupUnderTest& edge : edges) {
      if (edge.rank() == 0) {
        out.upload(*edge.stream);
        edge.comm->send(out.view(), 1, *edge.stream);
      } else {
        in.upload(*edge.stream);
        edge.comm->recv(in.view(), 0, *edge.stream);
        in.download(*edge.stream);
      }
    }
    for (GroupUnderTest& edge : edges)
      ASSERT_TRUE(edge.synchronize().ok()) << edge.stream->error().to_string();
    int previous = (world.rank_info().rank + size - 1) % size;
    EXPECT_EQ(first_difference(in, [&](int64_t i) { return as_double(known_value<float>(previous, i)); }),
              -1);
  }
}

// Several groups at work at once, each on a stream of its own; every rank issues to them in the same order.
void groups_work_side_by_side(World& world, Site& site) {
  constexpr int kGroups = 3;
  constexpr int kRepeats = 10;
  std::vector<GroupUnderTest> groups;
  std::vector<SiteTensor<int64_t>> data;
  for (int g = 0; g < kGroups; ++g) {
    groups.push_back(make_group(world, site, format("g{}", g)));
    data.push_back(SiteTensor<int64_t>(site, 1000));
    for (int64_t i = 0; i < data.back().size(); ++i) data.back()[i] = i + g;
  }
  for (size_t g = 0; g < kGroups; ++g) data[g].upload(*groups[g].stream);
  for (int repeat = 0; repeat < kRepeats; ++repeat)
    for (size_t g = 0; g < kGroups; ++g)
      groups[g].comm->all_reduce(data[g].view(), ReduceOp::kSum, *groups[g].stream);
  double factor = std::pow(world.rank_info().size, kRepeats);
  for (size_t g = 0; g < kGroups; ++g) {
    data[g].download(*groups[g].stream);
    ASSERT_TRUE(groups[g].synchronize().ok()) << groups[g].stream->error().to_string();
    auto expected = [&](int64_t i) { return static_cast<double>(i + static_cast<int64_t>(g)) * factor; };
    EXPECT_EQ(first_difference(data[g], expected), -1);
  }
}

// Issued in another order on every rank, with streams that stall: only the order within a communicator
// counts. Over GPUs it does not hold: kernels that wait for peers may keep those of another group from
// starting. The stalls, and the task that undoes each sum, are CpuStream's.
void communicators_do_not_wait_for_each_other(World& world, Site& site) {
  constexpr int kGroups = 3;
  constexpr int kRepeats = 40;
  int rank = world.rank_info().rank;
  std::vector<GroupUnderTest> groups;
  std::vector<SiteTensor<int32_t>> sums;
  for (int g = 0; g < kGroups; ++g) {
    auto stall = [rank, g](uint64_t task) {
      if ((task + static_cast<uint64_t>(rank + g)) % 7 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(300));
    };
    std::string name = format("g{}", g);
    auto stream = std::make_unique<device::CpuStream>(
        device::CpuStreamOptions{.name = name, .before_task = std::move(stall)});
    groups.push_back(make_group(world, site, all_ranks(world), name, 30, std::move(stream)));
    sums.push_back(SiteTensor<int32_t>(site, 1000));
    for (int64_t i = 0; i < sums.back().size(); ++i) sums.back()[i] = 1;
    sums.back().upload(*groups.back().stream);
  }
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (int i = 0; i < kGroups; ++i) {
      auto g = static_cast<size_t>((i + rank) % kGroups);
      // From `size` copies of one value to their sum, and back to the value.
      groups[g].comm->all_reduce(sums[g].view(), ReduceOp::kSum, *groups[g].stream);
      device::as_cpu(*groups[g].stream)
          .enqueue([data = sums[g].view().as<int32_t>(), size = world.rank_info().size] {
            for (int k = 0; k < 1000; ++k) data[k] = data[k] / size + 1;
          });
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    auto at = static_cast<size_t>(g);
    sums[at].download(*groups[at].stream);
    ASSERT_TRUE(groups[at].synchronize().ok()) << groups[at].stream->error().to_string();
    EXPECT_EQ(first_difference(sums[at], [](int64_t) { return 1.0 + kRepeats; }), -1);
  }
}

// Pairs of neighbours, and everyone in reverse: ranks of a group are positions in its list.
void sub_groups_are_independent(World& world, Site& site) {
  int rank = world.rank_info().rank;
  int size = world.rank_info().size;
  std::vector<int> half;
  for (int r = rank % 2; r < size; r += 2) half.push_back(r);
  GroupUnderTest parity = make_group(world, site, half, "parity");
  std::vector<int> backwards = all_ranks(world);
  std::reverse(backwards.begin(), backwards.end());
  GroupUnderTest reversed = make_group(world, site, backwards, "reversed");
  EXPECT_EQ(parity.rank(), rank / 2);
  EXPECT_EQ(reversed.rank(), size - 1 - rank);

  SiteTensor<int64_t> sum(site, 1);
  sum[0] = rank;
  SiteTensor<int32_t> mine(site, 1);
  mine[0] = rank;
  SiteTensor<int32_t> gathered(site, size);
  sum.upload(*parity.stream);
  mine.upload(*reversed.stream);
  gathered.upload(*reversed.stream);
  parity.comm->all_reduce(sum.view(), ReduceOp::kSum, *parity.stream);
  reversed.comm->all_gather(mine.view(), gathered.view(), *reversed.stream);
  sum.download(*parity.stream);
  gathered.download(*reversed.stream);
  ASSERT_TRUE(parity.synchronize().ok());
  ASSERT_TRUE(reversed.synchronize().ok());
  EXPECT_EQ(sum[0], std::accumulate(half.begin(), half.end(), 0));
  EXPECT_EQ(first_difference(gathered, [&](int64_t i) { return static_cast<double>(size - 1 - i); }), -1);
}

void groups_that_cannot_be_are_refused(World& world, Site& site) {
  int rank = world.rank_info().rank;
  int size = world.rank_info().size;
  auto code = [&](std::vector<int> ranks) {
    return site.make_communicator(world, ranks, "bad", std::chrono::seconds(30)).status().code();
  };
  EXPECT_EQ(code({rank, rank}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({rank, size}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({(rank + 1) % size}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
}

void a_group_of_one_needs_nobody(World& world, Site& site) {
  int me[] = {world.rank_info().rank};
  GroupUnderTest alone = make_group(world, site, me, "alone");
  auto data = SiteTensor<float>::known(site, 3, 100);
  auto expected = data.bytes();
  SiteTensor<float> copy(site, 100);
  data.upload(*alone.stream);
  copy.upload(*alone.stream);
  alone.comm->all_reduce(data.view(), ReduceOp::kSum, *alone.stream);
  alone.comm->all_gather(data.view(), copy.view(), *alone.stream);
  data.download(*alone.stream);
  copy.download(*alone.stream);
  ASSERT_TRUE(alone.synchronize().ok());
  EXPECT_EQ(data.bytes() == expected, true);
  EXPECT_EQ(copy.bytes() == expected, true);
}

// Word between the hosts, as ranks of an engine have it: whoever hears why a group ended ends it, too.
// `cause` is empty where it goes on.
void pass_on_abort(World& world, Communicator& group, const std::string& cause) {
  auto causes = world.all_gather_bytes(cause, Deadline::after_seconds(3));
  ASSERT_TRUE(causes.ok()) << causes.status().to_string();
  for (const std::string& heard : *causes)
    if (!heard.empty()) group.abort(unavailable(heard));
}

// Everyone but the last waits for it; it ends the group instead. What is issued later fails as well, and a
// new group of the same ranks works.
void abort_wakes_everyone(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site, "doomed", 600);
  SiteTensor<float> data(site, 100000);
  bool last = group.rank() == group.size() - 1;
  data.upload(*group.stream);
  if (!last) {
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    Status waiting = group.stream->synchronize(Deadline::after_seconds(0.05));
    EXPECT_EQ(waiting.code(), StatusCode::kDeadlineExceeded) << waiting.to_string();
  }
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(60)).ok());
  TimePoint begin = Clock::now();
  if (last) group.comm->abort(unavailable("the test pulled the plug"));
  if (last) group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  if (!site.traits().operations_end_themselves)
    pass_on_abort(world, *group.comm, last ? group.comm->poll().message() : "");
  Status status = group.synchronize(10);
  EXPECT_LT(seconds_between(begin, Clock::now()), site.traits().abort_seconds);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
  EXPECT_NE(status.message().find("pulled the plug"), std::string::npos) << status.to_string();
  EXPECT_EQ(group.comm->poll().code(), StatusCode::kUnavailable);

  // What an aborted group had on its device is freed on a thread that nobody waits for. In a process with
  // several GPUs that may wait for the operations of a new group, and hold up their start.
  if (!site.traits().operations_end_themselves) std::this_thread::sleep_for(std::chrono::seconds(1));
  GroupUnderTest fresh = make_group(world, site, "fresh");
  SiteTensor<int32_t> one(site, 1);
  one[0] = 1;
  one.upload(*fresh.stream);
  fresh.comm->all_reduce(one.view(), ReduceOp::kSum, *fresh.stream);
  one.download(*fresh.stream);
  ASSERT_TRUE(fresh.synchronize().ok());
  EXPECT_EQ(one[0], fresh.size());
}

// For operations that end themselves: otherwise nobody knows which peer is missing.
void a_silent_peer_is_named(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site, "impatient", 1);
  SiteTensor<float> data(site, 100);
  int last = group.size() - 1;
  // Whoever else came late would be named, too.
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(60)).ok());
  if (group.rank() != last) {
    data.upload(*group.stream);
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    Status status = group.synchronize(60);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.message().find(format("no word from rank {}", last)), std::string::npos)
        << status.to_string();
    EXPECT_NE(status.message().find("impatient"), std::string::npos) << status.to_string();
  }
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(60)).ok());
  // The silent one hears of it, too.
  Deadline soon = Deadline::after_seconds(60);
  while (group.comm->poll().ok() && !soon.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(group.comm->poll().code(), StatusCode::kDeadlineExceeded);
}

// The operation's own deadline ends it, or that of whoever waits for it.
void a_receiver_does_not_wait_for_ever(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site, "pair", 0.2);
  SiteTensor<float> data(site, 100);
  if (group.rank() == 0) {
    group.comm->recv(data.view(), 1, *group.stream);
    Status status = group.synchronize(site.traits().operations_end_themselves ? 10 : 0.2);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_EQ(group.stream->error().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(group.comm->poll().code(), StatusCode::kDeadlineExceeded);
  }
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(60)).ok());
}

void bytes_are_gathered(World& world, Site&) {
  int rank = world.rank_info().rank;
  auto text = [](int r) { return std::string(static_cast<size_t>(r * 50000), static_cast<char>('a' + r)); };
  for (int repeat = 0; repeat < 3; ++repeat) {
    auto all = world.all_gather_bytes(text(rank), Deadline::after_seconds(60));
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    ASSERT_EQ(static_cast<int>(all->size()), world.rank_info().size);
    for (int r = 0; r < world.rank_info().size; ++r)
      EXPECT_EQ((*all)[static_cast<size_t>(r)] == text(r), true);
  }
}

void hosts_are_known(World& world, Site&) {
  ASSERT_EQ(static_cast<int>(world.hosts().size()), world.rank_info().size);
  for (int r = 0; r < world.rank_info().size; ++r) {
    const HostInfo& host = world.hosts()[static_cast<size_t>(r)];
    EXPECT_EQ(host.hostname, this_host().hostname);
    EXPECT_EQ(host.local_rank, r);
    EXPECT_EQ(host.local_size, world.rank_info().size);
    EXPECT_GT(host.pid, 0);
  }
}

constexpr ConformanceCase kCases[] = {
    {"ARingOverTwoCommunicatorsFlows", a_ring_over_two_communicators_flows},
    {"GroupsWorkSideBySide", groups_work_side_by_side},
    {"CommunicatorsDoNotWaitForEachOther",
     communicators_do_not_wait_for_each_other,
     &SiteTraits::streams_may_stall},
    {"SubGroupsAreIndependent", sub_groups_are_independent},
    {"GroupsThatCannotBeAreRefused", groups_that_cannot_be_are_refused},
    {"AGroupOfOneNeedsNobody", a_group_of_one_needs_nobody},
    {"AbortWakesEveryone", abort_wakes_everyone},
    {"ASilentPeerIsNamed", a_silent_peer_is_named, &SiteTraits::operations_end_themselves},
    {"AReceiverDoesNotWaitForEver", a_receiver_does_not_wait_for_ever},
    {"BytesAreGathered", bytes_are_gathered},
    {"HostsAreKnown", hosts_are_known},
};

}  // namespace

std::span<const ConformanceCase> world_cases() { return kCases; }

}  // namespace llm_dist::comm
