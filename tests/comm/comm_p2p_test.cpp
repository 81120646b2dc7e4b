// Collectives over peer memory: the conformance suite, and what is particular to all-reduces.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {
namespace {

struct Ways {
  const char* name;
  std::optional<PeerLimits> limits;  // none: the defaults
};
constexpr Ways kWays[] = {
    {"Defaults", {}},
    {"Packets", PeerLimits{.packets_bytes = kEverything}},
    {"OneShot", PeerLimits{.one_shot_bytes = kEverything, .parts_bytes = 4 * kEverything}},
    {"TwoShot", PeerLimits{.two_shot_bytes = kEverything}},
    {"AllWays", PeerLimits{.packets_bytes = 4096, .one_shot_bytes = 32768, .two_shot_bytes = 512 << 10}},
};

class P2p : public testing::TestWithParam<std::tuple<int, Ways>> {
 protected:
  void run(const RankBody& body) const {
    run_with(std::get<0>(GetParam()), std::get<1>(GetParam()).limits, body);
  }
};

// The part of the suite that sums floats or exchanges parts on each way, all of it on the default ones.
std::vector<std::tuple<int, Ways, ConformanceCase>> suite() {
  constexpr std::string_view kOfEachWay[] = {"AllReduceSums",
                                             "ReductionsAreAccurateAndAlike",
                                             "AllGatherPlacesPartsByRank",
                                             "ReduceScatterSumsParts",
                                             "AllToAllTransposes"};
  std::vector<std::tuple<int, Ways, ConformanceCase>> all;
  for (int size : {2, 3, 4}) {
    for (const Ways& ways : kWays) {
      for (const ConformanceCase& each : conformance_cases(kPeerTraits)) {
        bool every_way = std::ranges::find(kOfEachWay, case_name(each)) != std::end(kOfEachWay);
        if (every_way || !ways.limits) all.emplace_back(size, ways, each);
      }
    }
  }
  return all;
}

class P2pConformance : public testing::TestWithParam<std::tuple<int, Ways, ConformanceCase>> {};

// In processes of a launcher, one world has to do for all, which the cases about worlds are not made for.
TEST_P(P2pConformance, Case) {
  auto [size, ways, tried] = GetParam();
  run_in_threads(size, ways.limits, tried.run);
}

std::string name_of(const testing::TestParamInfo<std::tuple<int, Ways, ConformanceCase>>& instance) {
  auto [size, ways, tried] = instance.param;
  return case_name(tried) + "Over" + ways.name + "With" + std::to_string(size);
}
INSTANTIATE_TEST_SUITE_P(Gpus, P2pConformance, testing::ValuesIn(suite()), name_of);

// Where calls of one run lie in a tensor.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
};

// Pieces of all sizes in a row, the same on every rank: odd, unaligned, a few elements apart.
std::vector<Piece> pieces_of(int64_t elements, unsigned seed) {
  std::mt19937 generator(seed);
  auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(generator); };
  std::vector<Piece> pieces;
  for (int64_t begin = up_to(9); begin < elements;) {
    int64_t size_class = up_to(20);
    int64_t wanted = size_class == 1 ? up_to(250000) : size_class < 6 ? up_to(20000) : up_to(1500);
    Piece piece{begin, std::min(wanted, elements - begin)};
    pieces.push_back(piece);
    begin += piece.count + up_to(9);
  }
  return pieces;
}

template <typename T>
void check_pieces(const SiteTensor<T>& actual, const std::vector<Piece>& pieces, int rank, int size) {
  std::vector<double> expected(static_cast<size_t>(actual.size()));
  for (int64_t i = 0; i < actual.size(); ++i)
    expected[static_cast<size_t>(i)] = as_double(known_value<T>(rank, i));
  for (const Piece& piece : pieces) {
    for (int64_t i = piece.begin; i < piece.begin + piece.count; ++i) {
      double sum = 0;
      for (int r = 0; r < size; ++r) sum += as_double(known_value<T>(r, i));
      expected[static_cast<size_t>(i)] = sum;
    }
  }
  EXPECT_EQ(first_difference(actual, [&](int64_t i) { return expected[static_cast<size_t>(i)]; }), -1);
}

// Hundreds of calls that no host waits for: one that wrote into memory of an earlier call too soon, or took
// an earlier call's data for its own, would give another sum somewhere.
TEST_P(P2p, CallsOfAllSizesBackToBack) {
  run([](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto check = [&](auto type, unsigned seed) {
      using T = decltype(type);
      constexpr int64_t kElements = 1 << 20;
      auto data = SiteTensor<T>::known(site, group.rank(), kElements);
      std::vector<Piece> pieces = pieces_of(kElements, seed);
      data.upload(*group.stream);
      for (const Piece& piece : pieces) {
        group.comm->all_reduce(data.view(piece.begin, piece.count), ReduceOp::kSum, *group.stream);
      }
      data.download(*group.stream);
      ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
      check_pieces(data, pieces, group.rank(), group.size());
    };
    for (unsigned seed = 1; seed <= 4; ++seed) {
      check(BFloat16{}, seed);
      check(Float16{}, seed + 10);
      check(float{}, seed + 20);
    }
  });
}

// A graph of calls of all sizes, replayed by ranks that are now ahead and now behind.
TEST_P(P2p, GraphsReplayManyTimes) {
  run([](World& world, Site& site) {
    constexpr int kReplays = 300;
    constexpr int64_t kElements = 1 << 19;
    GroupUnderTest group = make_group(world, site);
    auto fresh = SiteTensor<BFloat16>::known(site, group.rank(), kElements);
    SiteTensor<BFloat16> data(site, kElements);
    std::vector<Piece> pieces = pieces_of(kElements, 7);
    auto issue = [&] {
      group.stream->copy(data.view(), fresh.view());
      for (const Piece& piece : pieces)
        group.comm->all_reduce(data.view(piece.begin, piece.count), ReduceOp::kSum, *group.stream);
    };
    fresh.upload(*group.stream);
    data.upload(*group.stream);
    issue();
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    site.backend().begin_capture(*group.stream);
    issue();
    auto graph = site.backend().end_capture(*group.stream);
    ASSERT_TRUE(graph.ok()) << graph.status().to_string();
    ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
    std::mt19937 pauses(static_cast<unsigned>(group.rank()));
    for (int replay = 0; replay < kReplays; ++replay) {
      (*graph)->launch(*group.stream);
      if (pauses() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 2000));
    }
    data.download(*group.stream);
    ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
    check_pieces(data, pieces, group.rank(), group.size());
  });
}

// The last rank never comes; a step's worth of calls waits for it when the others give up.
TEST_P(P2p, AnAbortEndsWaitingKernels) {
  run([](World& world, Site& site) {
    constexpr int kCalls = 64;
    GroupUnderTest group = make_group(world, site, "doomed", 600);
    std::vector<SiteTensor<BFloat16>> data;
    for (int64_t count : {64, 8192, 100000}) data.emplace_back(site, count);
    for (const auto& each : data) each.upload(*group.stream);
    ASSERT_TRUE(group.synchronize().ok());
    if (group.rank() != group.size() - 1) {
      for (int i = 0; i < kCalls; ++i)
        group.comm->all_reduce(data[static_cast<size_t>(i) % 3].view(), ReduceOp::kSum, *group.stream);
      Status waiting = group.stream->synchronize(Deadline::after_seconds(0.05));
      EXPECT_EQ(waiting.code(), StatusCode::kDeadlineExceeded) << waiting.to_string();
      group.comm->abort(unavailable("a peer is gone"));
      Status ended = group.stream->synchronize(Deadline::after_seconds(1));
      EXPECT_TRUE(ended.ok()) << ended.to_string();
      EXPECT_EQ(group.comm->poll().code(), StatusCode::kUnavailable);
      group.comm->all_reduce(data[0].view(), ReduceOp::kSum, *group.stream);
      EXPECT_EQ(group.stream->error().code(), StatusCode::kUnavailable);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      group.comm->abort(unavailable("this rank is gone"));
    }
    ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2p,
                         testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(kWays)),
                         [](const auto& instance) {
                           return std::string(std::get<1>(instance.param).name) + "With" +
                                  std::to_string(std::get<0>(instance.param));
                         });

}  // namespace
}  // namespace llm_dist::comm
