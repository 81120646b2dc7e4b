#include "tests/comm/conformance.h"

#include <cmath>
#include <random>

#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

// Nothing, one, odd, and on both sides of where large reductions change their way and their round.
constexpr int64_t kCounts[] = {0, 1, 7, 1023, 8192, 16385};
constexpr int64_t kManyElements = (1 << 20) + 3;
// Of a part, where a case holds two tensors of a part for each rank.
constexpr int64_t kManyOfPart = (3 << 18) + 5;

double sum_of_known(int size, int64_t i, auto type) {
  double sum = 0;
  for (int r = 0; r < size; ++r) sum += as_double(known_value<decltype(type)>(r, i));
  return sum;
}

void all_reduce_sums(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  auto check = [&](auto type, int64_t count) {
    auto data = SiteTensor<decltype(type)>::known(site, group.rank(), count);
    data.upload(*group.stream);
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    data.download(*group.stream);
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

// In the group's own memory sums are what they are elsewhere, again and again.
void all_reduce_sums_in_the_groups_memory(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  const std::span<std::byte> memory = group.comm->sum_memory();
  for (int64_t count : {int64_t{1}, int64_t{1023}, static_cast<int64_t>(memory.size() / sizeof(BFloat16))}) {
    if (memory.size() < count * sizeof(BFloat16)) continue;
    const Tensor there = Tensor::contiguous(memory.data(), DType::kBF16, {count}, site.backend().device());
    for (int again = 0; again < 3; ++again) {
      auto data = SiteTensor<BFloat16>::known(site, group.rank(), count);
      data.upload(*group.stream);
      group.stream->copy(there, data.view());
      group.comm->all_reduce(there, ReduceOp::kSum, *group.stream);
      group.stream->copy(data.view(), there);
      data.download(*group.stream);
      ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
      auto expected = [&](int64_t i) { return sum_of_known(group.size(), i, BFloat16{}); };
      EXPECT_EQ(first_difference(data, expected), -1) << count << " elements, call " << again;
    }
  }
}

void all_reduce_takes_extremes(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
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
    auto high = SiteTensor<T>::known(site, group.rank(), 1023);
    auto low = SiteTensor<T>::known(site, group.rank(), 1023);
    high.upload(*group.stream);
    low.upload(*group.stream);
    group.comm->all_reduce(high.view(), ReduceOp::kMax, *group.stream);
    group.comm->all_reduce(low.view(), ReduceOp::kMin, *group.stream);
    high.download(*group.stream);
    low.download(*group.stream);
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

// What the sum of random values should be, element by element.
struct RandomSum {
  std::vector<double> exact;
  std::vector<double> of_magnitudes;
  std::vector<float> in_rank_order;

  explicit RandomSum(int64_t count)
      : exact(static_cast<size_t>(count)), of_magnitudes(exact.size()), in_rank_order(exact.size()) {}
  void add(size_t i, double value) {
    exact[i] += value;
    of_magnitudes[i] += std::abs(value);
    in_rank_order[i] += static_cast<float>(value);
  }
};

// Random values, whose sum depends on the order: equal bits on all ranks. Where sums are in rank order: in
// float that order's own, and with 16 bits no more than one rounding away from the exact sum. Otherwise: no
// more than one rounding for each rank added, and what is rounded is no larger than the magnitudes together.
void reductions_are_accurate_and_alike(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  bool in_order = site.traits().sums_in_rank_order;
  auto check = [&](auto type, int64_t count, double relative_error) {
    using T = decltype(type);
    RandomSum sum(count);
    SiteTensor<T> data(site, count);
    for (int r = 0; r < group.size(); ++r) {
      std::vector<float> values = random_values(r, count);
      for (size_t i = 0; i < values.size(); ++i) {
        T stored = from_float<T>(values[i]);
        sum.add(i, as_double(stored));
        if (r == group.rank()) data[static_cast<int64_t>(i)] = stored;
      }
    }
    data.upload(*group.stream);
    group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
    data.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    for (int64_t i = 0; i < count; ++i) {
      auto at = static_cast<size_t>(i);
      double scale = in_order ? std::abs(sum.exact[at]) : (group.size() - 1) * sum.of_magnitudes[at];
      ASSERT_LE(std::abs(as_double(data[i]) - sum.exact[at]), relative_error * scale + 1e-5) << i;
      if (in_order) {
        ASSERT_EQ(to_float(data[i]), to_float(from_float<T>(sum.in_rank_order[at]))) << i;
      }
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

void all_gather_places_parts_by_rank(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  auto check = [&](auto type, int64_t count, bool in_place) {
    using T = decltype(type);
    auto mine = SiteTensor<T>::known(site, group.rank(), count);
    SiteTensor<T> out(site, count * group.size());
    Tensor in = mine.view();
    if (in_place) {
      in = out.view(group.rank() * count, count);
      for (int64_t i = 0; i < count; ++i) out[group.rank() * count + i] = mine[i];
    }
    mine.upload(*group.stream);
    out.upload(*group.stream);
    group.comm->all_gather(in, out.view(), *group.stream);
    out.download(*group.stream);
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

void reduce_scatter_sums_parts(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  auto check = [&](auto type, int64_t count, bool in_place) {
    using T = decltype(type);
    auto in = SiteTensor<T>::known(site, group.rank(), count * group.size());
    SiteTensor<T> out(site, count);
    Tensor mine = in_place ? in.view(group.rank() * count, count) : out.view();
    in.upload(*group.stream);
    out.upload(*group.stream);
    group.comm->reduce_scatter(in.view(), mine, ReduceOp::kSum, *group.stream);
    in.download(*group.stream);
    out.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    for (int64_t i = 0; in_place && i < count; ++i) out[i] = in[group.rank() * count + i];
    int64_t first = group.rank() * count;
    EXPECT_TRUE(in.fences_stand());
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

void broadcast_from_every_root(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  for_each_dtype([&](auto type) {
    using T = decltype(type);
    for (int root = 0; root < group.size(); ++root) {
      auto data = SiteTensor<T>::known(site, group.rank(), 4097, group.rank());
      data.upload(*group.stream);
      group.comm->broadcast(data.view(), root, *group.stream);
      data.download(*group.stream);
      ASSERT_TRUE(group.synchronize().ok());
      EXPECT_EQ(first_difference(data, [&](int64_t i) { return as_double(known_value<T>(root, root + i)); }),
                -1);
    }
  });
}

void all_to_all_transposes(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  auto check = [&](auto type, int64_t count) {
    using T = decltype(type);
    auto in = SiteTensor<T>::known(site, group.rank(), count * group.size());
    SiteTensor<T> out(site, count * group.size());
    in.upload(*group.stream);
    out.upload(*group.stream);
    group.comm->all_to_all(in.view(), out.view(), *group.stream);
    out.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    auto expected = [&](int64_t i) {
      return as_double(known_value<T>(static_cast<int>(i / count), group.rank() * count + i % count));
    };
    EXPECT_EQ(first_difference(out, expected), -1);
  };
  for_each_dtype([&](auto type) {
    for (int64_t count : kCounts) check(type, count);
  });
  check(float{}, kManyOfPart);
}

// Each rank hands a token to the next, sizes on both sides of what a backend buffers; messages stay in order.
void send_and_recv_keep_order(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  if (group.rank() >= 2) return;
  int peer = 1 - group.rank();
  for (int64_t count : {int64_t{1}, int64_t{577}, kManyElements}) {
    auto a = SiteTensor<float>::known(site, 0, count);
    auto b = SiteTensor<float>::known(site, 1, count);
    SiteTensor<float> first(site, count);
    SiteTensor<float> second(site, count);
    for (auto* tensor : {&a, &b, &first, &second}) tensor->upload(*group.stream);
    if (group.rank() == 0) {
      group.comm->send(a.view(), peer, *group.stream);
      group.comm->send(b.view(), peer, *group.stream);
    } else {
      group.comm->recv(first.view(), peer, *group.stream);
      group.comm->recv(second.view(), peer, *group.stream);
      first.download(*group.stream);
      second.download(*group.stream);
    }
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    if (group.rank() == 0) continue;
    EXPECT_TRUE(first.fences_stand() && second.fences_stand()) << count;
    EXPECT_EQ(first.bytes() == a.bytes(), true) << count;
    EXPECT_EQ(second.bytes() == b.bytes(), true) << count;
  }
}

// Messages of all sizes from every rank to every other, one after the other, and back.
void every_rank_reaches_every_other(World& world, Site& site) {
  GroupUnderTest group = make_group(world, site);
  auto check = [&](auto type, int64_t count) {
    using T = decltype(type);
    auto mine = SiteTensor<T>::known(site, group.rank(), count);
    SiteTensor<T> all(site, count * group.size());
    mine.upload(*group.stream);
    all.upload(*group.stream);
    group.stream->copy(all.view(group.rank() * count, count), mine.view());
    for (int from = 0; from < group.size(); ++from) {
      for (int to = 0; to < group.size(); ++to) {
        if (from == to) continue;
        if (group.rank() == from) group.comm->send(mine.view(), to, *group.stream);
        if (group.rank() == to) group.comm->recv(all.view(from * count, count), from, *group.stream);
      }
    }
    all.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    auto expected = [&](int64_t i) {
      return as_double(known_value<T>(static_cast<int>(i / count), i % count));
    };
    EXPECT_EQ(first_difference(all, expected), -1) << count << " elements of " << sizeof type << " bytes";
  };
  for_each_dtype([&](auto type) {
    for (int64_t count : kCounts) check(type, count);
  });
  check(float{}, kManyOfPart);
}

// What was captured runs again at every launch, on the values of the time. As the engine does it, the call
// runs once before it is captured.
void a_graph_replays(World& world, Site& site) {
  constexpr int kReplays = 5;
  GroupUnderTest group = make_group(world, site);
  SiteTensor<int64_t> data(site, 1000);
  data.upload(*group.stream);
  group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
  site.backend().begin_capture(*group.stream);
  group.comm->all_reduce(data.view(), ReduceOp::kSum, *group.stream);
  auto graph = site.backend().end_capture(*group.stream);  // gone before the group that it uses
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
  double factor = std::pow(group.size(), kReplays);
  for (int64_t first : {1, 3}) {
    for (int64_t i = 0; i < data.size(); ++i) data[i] = first + i;
    data.upload(*group.stream);
    for (int replay = 0; replay < kReplays; ++replay) (*graph)->launch(*group.stream);
    data.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    auto expected = [&](int64_t i) { return static_cast<double>(first + i) * factor; };
    EXPECT_EQ(first_difference(data, expected), -1) << first;
  }
}

constexpr ConformanceCase kCases[] = {
    {"AllReduceSums", all_reduce_sums},
    {"AllReduceSumsInTheGroupsMemory", all_reduce_sums_in_the_groups_memory},
    {"AllReduceTakesExtremes", all_reduce_takes_extremes},
    {"ReductionsAreAccurateAndAlike", reductions_are_accurate_and_alike},
    {"AllGatherPlacesPartsByRank", all_gather_places_parts_by_rank},
    {"ReduceScatterSumsParts", reduce_scatter_sums_parts},
    {"BroadcastFromEveryRoot", broadcast_from_every_root},
    {"AllToAllTransposes", all_to_all_transposes},
    {"SendAndRecvKeepOrder", send_and_recv_keep_order},
    {"EveryRankReachesEveryOther", every_rank_reaches_every_other},
    {"AGraphReplays", a_graph_replays},
};

}  // namespace

std::vector<ConformanceCase> conformance_cases(const SiteTraits& traits) {
  std::vector<ConformanceCase> cases(std::begin(kCases), std::end(kCases));
  for (const ConformanceCase& each : world_cases())
    if (each.needs == nullptr || traits.*each.needs) cases.push_back(each);
  return cases;
}

}  // namespace llm_dist::comm
