// Collectives over peer memory: the conformance suite, and what is particular to all-reduces.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {
namespace {

constexpr Ways kWays[] = {
    {"Defaults", {}},
    {"Packets", PeerLimits{.packets_bytes = kEverything}},
    {"OneShot", PeerLimits{.one_shot_bytes = kEverything, .parts_bytes = 4 * kEverything}},
    {"TwoShot", PeerLimits{.two_shot_bytes = kEverything}},
    {"AllWays", PeerLimits{.packets_bytes = 4096, .one_shot_bytes = 32768, .two_shot_bytes = 512 << 10}},
};

class P2p : public OverWays {};

// The part of the suite that sums floats or exchanges parts on each way, all of it on the default ones.
std::vector<CaseOverWays> suite() {
  constexpr std::string_view kOfEachWay[] = {"AllReduceSums",
                                             "ReductionsAreAccurateAndAlike",
                                             "AllGatherPlacesPartsByRank",
                                             "ReduceScatterSumsParts",
                                             "AllToAllTransposes"};
  return cases_over(kWays, [&](const Ways& ways, std::string_view name) {
    return !ways.limits || std::ranges::find(kOfEachWay, name) != std::end(kOfEachWay);
  });
}

class P2pConformance : public testing::TestWithParam<CaseOverWays> {};

// In processes of a launcher, one world has to do for all, which the cases about worlds are not made for.
TEST_P(P2pConformance, Case) {
  auto [size, ways, tried] = GetParam();
  run_in_threads(size, ways.limits, tried.run);
}
INSTANTIATE_TEST_SUITE_P(Gpus, P2pConformance, testing::ValuesIn(suite()), name_of_case);

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
    auto expect = [&] {
      data.download(*group.stream);
      ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
      check_pieces(data, pieces, group.rank(), group.size());
    };
    replay_in_graph(world, site, group, {.issue = issue, .expect = expect, .replays = 300});
  });
}

// The last rank never comes; a step's worth of calls waits for it when the others give up.
TEST_P(P2p, AnAbortEndsWaitingKernels) {
  run([](World& world, Site& site) {
    constexpr size_t kCalls = 64;
    GroupUnderTest group = make_group(world, site, "doomed", 600);
    std::vector<SiteTensor<BFloat16>> data;
    for (int64_t count : {64, 8192, 100000}) data.emplace_back(site, count);
    for (const auto& each : data) each.upload(*group.stream);
    auto sum = [&](size_t i) { group.comm->all_reduce(data[i].view(), ReduceOp::kSum, *group.stream); };
    auto issue = [&] {
      for (size_t i = 0; i < kCalls; ++i) sum(i % data.size());
    };
    auto issue_more = [&] { sum(0); };
    const bool waiting = group.rank() != group.size() - 1;
    expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2p,
                         testing::Combine(testing::Values(2, 3, 4), testing::ValuesIn(kWays)),
                         name_of_ways);

}  // namespace
}  // namespace llm_dist::comm
