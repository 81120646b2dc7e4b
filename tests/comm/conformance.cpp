#include "tests/comm/conformance.h"

#include <cmath>
#include <random>
#include <thread>

#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

// Nothing, one, odd, and on both sides of where large reductions change their way and their round.
constexpr int64_t kCounts[] = {0, 1, 7, 1023, 8192, 16385};
constexpr int64_t kManyElements = (1 << 20) + 3;

double sum_of_known(int size, int64_t i, auto type) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += as_double(known_value<decltype(type)>(r, i));
  return sum;
}

void all_reduce_sums(World& world) {
  GroupUnderTest group = make_group(world);
  auto check = [&](auto type, int64_t count) {
    auto data = HostTensor<decltype(type)>::known(group.rank(), count);
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    EXPECT_EQ(first_difference(data, [&](int64_t i) { return sum_of_known(group.size(), i, type); }), -1)
        << count << " elements of " << sizeof type << " bytes";
  };
  for_each_dtype([&](auto type) {
    for (int64_t count : kCounts) check(type, count);
  });
  check(float{}, kManyElements);
  check(BFloat16{}, kManyElements);
}

void all_reduce_takes_extremes(World& world) {
  GroupUnderTest group = make_group(world);
  for_each_dtype([&](auto type) {
    using T = decltype(type);
    auto extreme = [&](int64_t i, auto better) {
      double best = as_double(known_value<T>(0, i));
      for (int r = 1; r < group.size(); ++r) {
        double next = as_double(known_value<T>(r, i));
        if (better(next, best)) best = next;
      }
      return best;
    };
    auto high = HostTensor<T>::known(group.rank(), 1023);
    auto low = HostTensor<T>::known(group.rank(), 1023);
    group.comm->all_reduce(high.view(), ReduceOp::kMax, *group.stream);
    group.comm->all_reduce(low.view(), ReduceOp::kMin, *group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    EXPECT_EQ(first_difference(high, [&](int64_t i) { return extreme(i, std::greater<>()); }), -1);
    EXPECT_EQ(first_difference(low, [&](int64_t i) { return extreme(i, std::less<>()); }), -1);
  });
}

std::vector<float> random_values(int rank, int64_t count) {
  std::mt19937 generator(static_cast<unsigned>(17 + rank));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

// Random values, whose sum depends on the order: equal bits on all ranks, in float the rank order's own, and
// with 16 bits no more than one rounding away from the exact sum.
void reductions_are_accurate_and_alike(World& world) {
  GroupUnderTest group = make_group(world);
  auto check = [&](auto type, int64_t count, double relative_error) {
    using T = decltype(type);
    std::vector<double> exact(static_cast<size_t>(count));
    std::vector<float> in_rank_order(static_cast<size_t>(count));
    HostTensor<T> data(count);
    for (int r = 0; r < group.size(); ++r) {
      std::vector<float> values = random_values(r, count);
      for (size_t i = 0; i < values.size(); ++i) {
        T stored = from_float<T>(values[i]);
        exact[i] += as_double(stored);
        in_rank_order[i] = r == 0 ? to_float(stored) : in_rank_order[i] + to_float(stored);
        if (r == group.rank()) data[static_cast<int64_t>(i)] = stored;
      }
    }
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    for (int64_t i = 0; i < count; ++i) {
      auto at = static_cast<size_t>(i);
      ASSERT_LE(std::abs(as_double(data[i]) - exact[at]), relative_error * std::abs(exact[at]) + 1e-5) << i;
      ASSERT_EQ(to_float(data[i]), to_float(from_float<T>(in_rank_order[at]))) << i;
    }
    auto everyone = world.all_gather_bytes(data.bytes(), Deadline::after_seconds(30));
    ASSERT_TRUE(everyone.ok()) << everyone.status().to_string();
    for (const std::string& bytes : *everyone) EXPECT_EQ(bytes == data.bytes(), true) << count;
  };
  for (int64_t count : {1000, 100001}) {
    check(float{}, count, 1e-6);
    check(BFloat16{}, count, 1.0 / 256);
    check(Float16{}, count, 1.0 / 2048);
  }
}

void all_gather_places_parts_by_rank(World& world) {
  GroupUnderTest group = make_group(world);
  auto check = [&](auto type, int64_t count, bool in_place) {
    using T = decltype(type);
    auto mine = HostTensor<T>::known(group.rank(), count);
    HostTensor<T> out(count * group.size());
    Tensor in = mine.view();
    if (in_place) {
      in = out.view(group.rank() * count, count);
      for (int64_t i = 0; i < count; ++i) out[group.rank() * count + i] = mine[i];
    }
    group.comm->all_gather(in, out.view(), *group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    EXPECT_EQ(first_difference(out,
                               [&](int64_t i) {
                                 return as_double(known_value<T>(static_cast<int>(i / count), i % count));
                               }),
              -1);
  };
  for (bool in_place : {false, true}) {
    for_each_dtype([&](auto type) {
      for (int64_t count : kCounts) check(type, count, in_place);
    });
    check(float{}, kManyElements, in_place);
  }
}

void reduce_scatter_sums_parts(World& world) {
  GroupUnderTest group = make_group(world);
  auto check = [&](auto type, int64_t count, bool in_place) {
    using T = decltype(type);
    auto in = HostTensor<T>::known(group.rank(), count * group.size());
    HostTensor<T> out(count);
    Tensor mine = in_place ? in.view(group.rank() * count, count) : out.view();
    group.comm->reduce_scatter(in.view(), mine, ReduceOp::kSum, *group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    for (int64_t i = 0; in_place && i < count; ++i) out[i] = in[group.rank() * count + i];
    int64_t first = group.rank() * count;
    EXPECT_EQ(first_difference(out, [&](int64_t i) { return sum_of_known(group.size(), first + i, type); }),
              -1);
  };
  for (bool in_place : {false, true}) {
    for_each_dtype([&](auto type) {
      for (int64_t count : kCounts) check(type, count, in_place);
    });
    check(float{}, kManyElements, in_place);
  }
}

void broadcast_from_every_root(World& world) {
  GroupUnderTest group = make_group(world);
  for_each_dtype([&](auto type) {
    using T = decltype(type);
    for (int root = 0; root < group.size(); ++root) {
      auto data = HostTensor<T>::known(group.rank(), 4097, group.rank());
      group.comm->broadcast(data.view(), root, *group.stream);
      ASSERT_TRUE(group.synchronize().ok());
      EXPECT_EQ(first_difference(data, [&](int64_t i) { return as_double(known_value<T>(root, root + i)); }),
                -1);
    }
  });
}

void all_to_all_transposes(World& world) {
  GroupUnderTest group = make_group(world);
  for_each_dtype([&](auto type) {
    using T = decltype(type);
    for (int64_t count : kCounts) {
      auto in = HostTensor<T>::known(group.rank(), count * group.size());
      HostTensor<T> out(count * group.size());
      group.comm->all_to_all(in.view(), out.view(), *group.stream);
      ASSERT_TRUE(group.synchronize().ok());
      auto expected = [&](int64_t i) {
        return as_double(known_value<T>(static_cast<int>(i / count), group.rank() * count + i % count));
      };
      EXPECT_EQ(first_difference(out, expected), -1);
    }
  });
}

// Each rank hands a token to the next, sizes on both sides of what a backend buffers; messages stay in order.
void send_and_recv_keep_order(World& world) {
  GroupUnderTest group = make_group(world);
  if (group.rank() >= 2) return;
  int peer = 1 - group.rank();
  for (int64_t count : {int64_t{1}, int64_t{577}, kManyElements}) {
    auto a = HostTensor<float>::known(0, count);
    auto b = HostTensor<float>::known(1, count);
    HostTensor<float> first(count);
    HostTensor<float> second(count);
    if (group.rank() == 0) {
      group.comm->send(a.view(), peer, *group.stream);
      group.comm->send(b.view(), peer, *group.stream);
    } else {
      group.comm->recv(first.view(), peer, *group.stream);
      group.comm->recv(second.view(), peer, *group.stream);
    }
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    if (group.rank() == 0) continue;
    EXPECT_EQ(first.bytes() == a.bytes(), true) << count;
    EXPECT_EQ(second.bytes() == b.bytes(), true) << count;
  }
}

// A cycle: everyone sends large tensors to the next rank and receives from the previous one, each direction
// over a communicator and a stream of its own.
void a_ring_over_two_communicators_flows(World& world) {
  constexpr int64_t kElements = 200000;
  int size = world.rank_info().size;
  std::vector<GroupUnderTest> edges;  // edge e leads from rank e to rank e + 1
  for (int e = 0; e < size; ++e) {
    int ranks[] = {e, (e + 1) % size};
    if (world.rank_info().rank == ranks[0] || world.rank_info().rank == ranks[1])
      edges.push_back(make_group(world, ranks, "edge"));
  }
  auto out = HostTensor<float>::known(world.rank_info().rank, kElements);
  HostTensor<float> in(kElements);
  for (int repeat = 0; repeat < 3; ++repeat) {
    for (GroupUnderTest& edge : edges) {
      if (edge.rank() == 0) edge.comm->send(out.view(), 1, *edge.stream);
      if (edge.rank() == 1) edge.comm->recv(in.view(), 0, *edge.stream);
    }
    for (GroupUnderTest& edge : edges)
      ASSERT_TRUE(edge.synchronize().ok()) << edge.stream->error().to_string();
    int previous = (world.rank_info().rank + size - 1) % size;
    EXPECT_EQ(first_difference(in, [&](int64_t i) { return as_double(known_value<float>(previous, i)); }),
              -1);
  }
}

// Issued in another order on every rank, with streams that stall: only the order within a communicator
// counts.
void communicators_do_not_wait_for_each_other(World& world) {
  constexpr int kGroups = 3;
  constexpr int kRepeats = 40;
  int rank = world.rank_info().rank;
  std::vector<GroupUnderTest> groups;
  for (int g = 0; g < kGroups; ++g) {
    auto stall = [rank, g](uint64_t task) {
      if ((task + static_cast<uint64_t>(rank + g)) % 7 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(300));
    };
    groups.push_back(make_group(world, all_ranks(world), format("g{}", g), 30, stall));
  }
  std::vector<HostTensor<int32_t>> sums(kGroups, HostTensor<int32_t>(1000));
  for (auto& sum : sums)
    for (int64_t i = 0; i < sum.size(); ++i) sum[i] = 1;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (int i = 0; i < kGroups; ++i) {
      auto g = static_cast<size_t>((i + rank) % kGroups);
      // From `size` copies of one value to their sum, and back to the value.
      groups[g].comm->all_reduce(sums[g].view(), ReduceOp::kSum, *groups[g].stream);
      groups[g].stream->enqueue([data = sums[g].view().as<int32_t>(), size = world.rank_info().size] {
        for (int k = 0; k < 1000; ++k) data[k] = data[k] / size + 1;
      });
    }
  }
  for (int g = 0; g < kGroups; ++g) {
    auto at = static_cast<size_t>(g);
    ASSERT_TRUE(groups[at].synchronize().ok()) << groups[at].stream->error().to_string();
    EXPECT_EQ(first_difference(sums[at], [](int64_t) { return 1.0 + kRepeats; }), -1);
  }
}

// Pairs of neighbours, and everyone in reverse: ranks of a group are positions in its list.
void sub_groups_are_independent(World& world) {
  int rank = world.rank_info().rank;
  int size = world.rank_info().size;
  std::vector<int> half;
  for (int r = rank % 2; r < size; r += 2) half.push_back(r);
  GroupUnderTest parity = make_group(world, half, "parity");
  std::vector<int> backwards = all_ranks(world);
  std::reverse(backwards.begin(), backwards.end());
  GroupUnderTest reversed = make_group(world, backwards, "reversed");
  EXPECT_EQ(parity.rank(), rank / 2);
  EXPECT_EQ(reversed.rank(), size - 1 - rank);

  HostTensor<int64_t> sum(1);
  sum[0] = rank;
  HostTensor<int32_t> mine(1);
  mine[0] = rank;
  HostTensor<int32_t> gathered(size);
  parity.comm->all_reduce(sum.view(), ReduceOp::kSum, *parity.stream);
  reversed.comm->all_gather(mine.view(), gathered.view(), *reversed.stream);
  ASSERT_TRUE(parity.synchronize().ok());
  ASSERT_TRUE(reversed.synchronize().ok());
  EXPECT_EQ(sum[0], std::accumulate(half.begin(), half.end(), 0));
  EXPECT_EQ(first_difference(gathered, [&](int64_t i) { return static_cast<double>(size - 1 - i); }), -1);
}

void groups_that_cannot_be_are_refused(World& world) {
  int rank = world.rank_info().rank;
  int size = world.rank_info().size;
  auto code = [&](std::vector<int> ranks) { return world.make_communicator(ranks, "bad").status().code(); };
  EXPECT_EQ(code({rank, rank}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({rank, size}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({(rank + 1) % size}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({}), StatusCode::kInvalidArgument);
}

void a_group_of_one_needs_nobody(World& world) {
  int me[] = {world.rank_info().rank};
  GroupUnderTest alone = make_group(world, me, "alone");
  auto data = HostTensor<float>::known(3, 100);
  auto expected = data.bytes();
  HostTensor<float> copy(100);
  alone.comm->all_reduce(data.view(), ReduceOp::kSum, *alone.stream);
  alone.comm->all_gather(data.view(), copy.view(), *alone.stream);
  ASSERT_TRUE(alone.synchronize().ok());
  EXPECT_EQ(data.bytes() == expected, true);
  EXPECT_EQ(copy.bytes() == expected, true);
}

// Everyone but the last waits for it; it ends the group instead. What is issued later fails as well, and a
// new group of the same ranks works.
void abort_wakes_everyone(World& world) {
  GroupUnderTest group = make_group(world, "doomed", 600);
  HostTensor<float> data(100000);
  bool last = group.rank() == group.size() - 1;
  if (!last) group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
  TimePoint begin = Clock::now();
  if (last) group.comm->abort(unavailable("the test pulled the plug"));
  if (last) group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  Status status = group.synchronize(10);
  EXPECT_LT(seconds_between(begin, Clock::now()), 1.0);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
  EXPECT_NE(status.message().find("pulled the plug"), std::string::npos) << status.to_string();
  EXPECT_EQ(group.comm->poll().code(), StatusCode::kUnavailable);

  GroupUnderTest fresh = make_group(world, "fresh");
  HostTensor<int32_t> one(1);
  one[0] = 1;
  fresh.comm->all_reduce(one.view(), ReduceOp::kSum, *fresh.stream);
  ASSERT_TRUE(fresh.synchronize().ok());
  EXPECT_EQ(one[0], fresh.size());
}

void a_silent_peer_is_named(World& world) {
  GroupUnderTest group = make_group(world, "impatient", 0.3);
  HostTensor<float> data(100);
  int last = group.size() - 1;
  if (group.rank() != last) {
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    Status status = group.synchronize(10);
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status.to_string();
    EXPECT_NE(status.message().find(format("no word from rank {}", last)), std::string::npos)
        << status.to_string();
    EXPECT_NE(status.message().find("impatient"), std::string::npos) << status.to_string();
  }
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
  // The silent one hears of it, too.
  Deadline soon = Deadline::after_seconds(1);
  while (group.comm->poll().ok() && !soon.expired())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(group.comm->poll().code(), StatusCode::kDeadlineExceeded);
}

void a_receiver_does_not_wait_for_ever(World& world) {
  GroupUnderTest group = make_group(world, "pair", 0.2);
  HostTensor<float> data(100);
  if (group.rank() == 0) {
    group.comm->recv(data.view(), 1, *group.stream);
    EXPECT_EQ(group.synchronize(10).code(), StatusCode::kDeadlineExceeded);
  }
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
}

void bytes_are_gathered(World& world) {
  int rank = world.rank_info().rank;
  auto text = [](int r) { return std::string(static_cast<size_t>(r * 50000), static_cast<char>('a' + r)); };
  for (int repeat = 0; repeat < 3; ++repeat) {
    auto all = world.all_gather_bytes(text(rank), Deadline::after_seconds(30));
    ASSERT_TRUE(all.ok()) << all.status().to_string();
    ASSERT_EQ(static_cast<int>(all->size()), world.rank_info().size);
    for (int r = 0; r < world.rank_info().size; ++r)
      EXPECT_EQ((*all)[static_cast<size_t>(r)] == text(r), true);
  }
}

void hosts_are_known(World& world) {
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
    {"AllReduceSums", all_reduce_sums},
    {"AllReduceTakesExtremes", all_reduce_takes_extremes},
    {"ReductionsAreAccurateAndAlike", reductions_are_accurate_and_alike},
    {"AllGatherPlacesPartsByRank", all_gather_places_parts_by_rank},
    {"ReduceScatterSumsParts", reduce_scatter_sums_parts},
    {"BroadcastFromEveryRoot", broadcast_from_every_root},
    {"AllToAllTransposes", all_to_all_transposes},
    {"SendAndRecvKeepOrder", send_and_recv_keep_order},
    {"ARingOverTwoCommunicatorsFlows", a_ring_over_two_communicators_flows},
    {"CommunicatorsDoNotWaitForEachOther", communicators_do_not_wait_for_each_other},
    {"SubGroupsAreIndependent", sub_groups_are_independent},
    {"GroupsThatCannotBeAreRefused", groups_that_cannot_be_are_refused},
    {"AGroupOfOneNeedsNobody", a_group_of_one_needs_nobody},
    {"AbortWakesEveryone", abort_wakes_everyone},
    {"ASilentPeerIsNamed", a_silent_peer_is_named},
    {"AReceiverDoesNotWaitForEver", a_receiver_does_not_wait_for_ever},
    {"BytesAreGathered", bytes_are_gathered},
    {"HostsAreKnown", hosts_are_known},
};

}  // namespace

std::span<const ConformanceCase> conformance_cases() { return kCases; }

}  // namespace llm_dist::comm
