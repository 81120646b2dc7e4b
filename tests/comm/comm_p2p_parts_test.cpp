// Gathers, all-to-alls and reduce-scatters over peer memory, among each other and among the group's other
// calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "comm/norm_reducer.h"
#include "tests/comm/p2p_fixture.h"

namespace llm_dist::comm {
namespace {

// With the last, calls that share memory alternate between sums and exchanges, and some go over NCCL.
constexpr Ways kWays[] = {{"Defaults", {}},
                          {"Packets", PeerLimits{.packets_bytes = kEverything}},
                          {"OneShot", PeerLimits{.one_shot_bytes = kEverything, .parts_bytes = kEverything}},
                          {"AllWays",
                           PeerLimits{.packets_bytes = 4096,
                                      .one_shot_bytes = 256 << 10,
                                      .two_shot_bytes = 512 << 10,
                                      .parts_bytes = 512 << 10}}};

enum class Kind { kGather, kGatherInPlace, kAllToAll, kReduceScatter, kReduceScatterInPlace, kAllReduce };
constexpr Kind kMoves[] = {Kind::kGather, Kind::kGatherInPlace, Kind::kAllToAll};
constexpr Kind kKinds[] = {Kind::kGather,
                           Kind::kGatherInPlace,
                           Kind::kAllToAll,
                           Kind::kReduceScatter,
                           Kind::kReduceScatterInPlace,
                           Kind::kAllReduce};

// In and out have places of its own for each call, of as many parts as there are ranks, with gaps between.
struct Call {
  Kind kind = Kind::kGather;
  int64_t count = 0;  // of a part's elements; of an all-reduce: of all
  int64_t begin = 0;
  int64_t skew = 0;  // a rank's tensors begin so many elements behind those of the rank before

  int64_t at(int rank) const { return begin + rank * skew; }
};

// The same on every rank: of all sizes, odd, unaligned, a few elements apart.
std::vector<Call> calls_in(int64_t elements, int size, std::span<const Kind> kinds, unsigned seed) {
  std::mt19937 generator(seed);
  auto up_to = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(generator); };
  std::vector<Call> calls;
  for (int64_t begin = up_to(9);;) {
    const int64_t size_class = up_to(20);
    Call call{.begin = begin};
    call.kind = kinds[static_cast<size_t>(up_to(static_cast<int64_t>(kinds.size())) - 1)];
    call.count = up_to(size_class == 1 ? elements / (4 * size) : size_class < 6 ? 5000 : 300);
    if (up_to(3) == 1) call.count = (call.count + 7) / 8 * 8;
    call.skew = up_to(2) == 1 ? 0 : up_to(3);
    begin += size * call.count + (size - 1) * call.skew + up_to(9);
    if (begin > elements) return calls;
    calls.push_back(call);
  }
}

// One rank's tensors, on which it makes calls; what they begin with is known of every rank.
template <typename T>
class PartsUnderTest {
 public:
  PartsUnderTest(Site& site, GroupUnderTest& group, int64_t elements)
      : group_(group),
        fresh_in_(SiteTensor<T>::known(site, group.rank(), elements)),
        fresh_out_(SiteTensor<T>::known(site, group.rank() + kOutSeed, elements)),
        in_(site, elements),
        out_(site, elements) {
    for (SiteTensor<T>* tensor : {&fresh_in_, &fresh_out_, &in_, &out_}) tensor->upload(*group.stream);
  }

  void restart() {
    group_.stream->copy(in_.view(), fresh_in_.view());
    group_.stream->copy(out_.view(), fresh_out_.view());
  }
  void issue(const Call& call) {
    const int64_t begin = call.at(rank());
    const int64_t n = call.count;
    auto parts = [&](const SiteTensor<T>& tensor) { return tensor.view(begin, size() * n); };
    auto part = [&](const SiteTensor<T>& tensor, int index) { return tensor.view(begin + index * n, n); };
    Communicator& comm = *group_.comm;
    device::Stream& stream = *group_.stream;
    switch (call.kind) {
      case Kind::kGather: return comm.all_gather(part(in_, 0), parts(out_), stream);
      case Kind::kGatherInPlace: return comm.all_gather(part(out_, rank()), parts(out_), stream);
      case Kind::kAllToAll: return comm.all_to_all(parts(in_), parts(out_), stream);
      case Kind::kReduceScatter:
        return comm.reduce_scatter(parts(in_), part(out_, 0), ReduceOp::kSum, stream);
      case Kind::kReduceScatterInPlace:
        return comm.reduce_scatter(parts(in_), part(in_, rank()), ReduceOp::kSum, stream);
      case Kind::kAllReduce: return comm.all_reduce(part(out_, 0), ReduceOp::kSum, stream);
    }
  }
  // Keeps this rank's GPU busy.
  void fall_behind(unsigned copies) {
    for (unsigned i = 0; i < copies; ++i) group_.stream->copy(fresh_in_.view(), fresh_in_.view());
  }
  // All of both tensors, the gaps included, after the calls since a restart.
  void expect(std::span<const Call> calls) {
    in_.download(*group_.stream);
    out_.download(*group_.stream);
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    std::vector<double> in(static_cast<size_t>(in_.size()));
    std::vector<double> out(in.size());
    for (size_t i = 0; i < in.size(); ++i) {
      in[i] = in_value(rank(), static_cast<int64_t>(i));
      out[i] = out_value(rank(), static_cast<int64_t>(i));
    }
    for (const Call& call : calls) apply(call, in.data() + call.at(rank()), out.data() + call.at(rank()));
    EXPECT_EQ(first_difference(in_, [&](int64_t i) { return in[static_cast<size_t>(i)]; }), -1);
    EXPECT_EQ(first_difference(out_, [&](int64_t i) { return out[static_cast<size_t>(i)]; }), -1);
  }

 private:
  static constexpr int kOutSeed = 9;

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  static double in_value(int rank, int64_t i) { return as_double(known_value<T>(rank, i)); }
  static double out_value(int rank, int64_t i) { return as_double(known_value<T>(rank + kOutSeed, i)); }

  double sum_of(const Call& call, double (*value)(int, int64_t), int64_t index) const {
    double sum = 0;
    for (int source = 0; source < size(); ++source) sum += value(source, call.at(source) + index);
    return sum;
  }
  // What this rank's in and out hold after it, from where the call's begin.
  void apply(const Call& call, double* in, double* out) const {
    const int64_t n = call.count;
    const int64_t mine = rank() * n;
    for (int64_t j = 0; j < n; ++j) {
      for (int source = 0; source < size(); ++source) {
        const int64_t begin = call.at(source);
        double& received = out[source * n + j];
        if (call.kind == Kind::kGather) received = in_value(source, begin + j);
        if (call.kind == Kind::kGatherInPlace) received = out_value(source, begin + source * n + j);
        if (call.kind == Kind::kAllToAll) received = in_value(source, begin + mine + j);
      }
      if (call.kind == Kind::kReduceScatter) out[j] = sum_of(call, in_value, mine + j);
      if (call.kind == Kind::kReduceScatterInPlace) in[mine + j] = sum_of(call, in_value, mine + j);
      if (call.kind == Kind::kAllReduce) out[j] = sum_of(call, out_value, j);
    }
  }

  GroupUnderTest& group_;
  SiteTensor<T> fresh_in_;
  SiteTensor<T> fresh_out_;
  SiteTensor<T> in_;
  SiteTensor<T> out_;
};

class P2pParts : public OverWays {};

// Hundreds of calls that no host waits for: one that wrote into memory of an earlier call too soon, or took
// an earlier call's data for its own, would leave something else somewhere. Now one rank comes late to a
// call, now another; and those that wait have their next calls behind it.
TEST_P(P2pParts, CallsOfAllSizesBackToBack) {
  run([](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    auto check = [&](auto type, std::span<const Kind> kinds, unsigned seed, bool late) {
      using T = decltype(type);
      constexpr int64_t kElements = 3 << 18;
      PartsUnderTest<T> parts(site, group, kElements);
      const std::vector<Call> calls = calls_in(kElements, group.size(), kinds, seed);
      std::mt19937 generator(seed);
      parts.restart();
      for (const Call& call : calls) {
        const unsigned who = generator() % static_cast<unsigned>(4 * group.size());
        const unsigned copies = 1 + generator() % 20;
        if (late && static_cast<int>(who) == group.rank()) parts.fall_behind(copies);
        parts.issue(call);
      }
      SCOPED_TRACE(std::to_string(sizeof(T)) + " bytes, seed " + std::to_string(seed));
      parts.expect(calls);
    };
    for (unsigned seed = 1; seed <= 4; ++seed) {
      const bool late = seed % 2 == 0;
      check(BFloat16{}, kKinds, seed, late);
      check(Float16{}, kKinds, seed + 10, late);
      check(float{}, kKinds, seed + 20, late);
      check(int64_t{}, kKinds, seed + 30, late);
      check(uint8_t{}, kMoves, seed + 40, late);
    }
  });
}

// A graph of calls of all sizes, replayed by ranks that are now ahead and now behind.
TEST_P(P2pParts, GraphsReplayManyTimes) {
  run([](World& world, Site& site) {
    constexpr int64_t kElements = 1 << 19;
    GroupUnderTest group = make_group(world, site);
    PartsUnderTest<BFloat16> parts(site, group, kElements);
    const std::vector<Call> calls = calls_in(kElements, group.size(), kKinds, 7);
    auto issue = [&] {
      parts.restart();
      for (const Call& call : calls) parts.issue(call);
    };
    replay_in_graph(
        world, site, group, {.issue = issue, .expect = [&] { parts.expect(calls); }, .replays = 200});
  });
}

// The last rank never comes; a step's worth of calls waits for it when the others give up.
TEST_P(P2pParts, AnAbortEndsWaitingKernels) {
  run([](World& world, Site& site) {
    constexpr size_t kCalls = 64;
    GroupUnderTest group = make_group(world, site, "doomed", 600);
    PartsUnderTest<BFloat16> parts(site, group, 1 << 18);
    auto issue = [&] {
      for (size_t i = 0; i < kCalls; ++i)
        parts.issue({.kind = kKinds[i % std::size(kKinds)], .count = i % 2 == 0 ? 64 : 8000});
    };
    auto issue_more = [&] { parts.issue({.kind = Kind::kGather, .count = 1}); };
    const bool waiting = group.rank() != group.size() - 1;
    expect_abort_to_end(world, group, {.waiting = waiting, .issue = issue, .issue_more = issue_more});
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         P2pParts,
                         testing::Combine(testing::Values(2, 3, 4, 8), testing::ValuesIn(kWays)),
                         name_of_ways);

// Sums with the norm behind them, of all rows and of shares, which have the same bits: always those of the
// first.
class NormsBetween {
 public:
  NormsBetween(Site& site, GroupUnderTest& group)
      : group_(group),
        reducer_(dynamic_cast<NormReducer&>(*group.comm)),
        rows_(4 * group.size()),
        term_(site, elements()),
        residual_(site, elements()),
        weight_(site, kHidden),
        x_(site, elements()),
        sum_(site, elements()),
        results_(site, kResults * elements()) {
    for (int64_t i = 0; i < elements(); ++i) {
      term_[i] = scattered_value<BFloat16>(static_cast<uint64_t>(group.rank()) + 1, i);
      residual_[i] = scattered_value<BFloat16>(99, i);
    }
    for (int64_t i = 0; i < kHidden; ++i) weight_[i] = scattered_value<BFloat16>(77, i);
    for (SiteTensor<BFloat16>* tensor : {&term_, &residual_, &weight_, &results_})
      tensor->upload(*group.stream);
    // Results that the rest of the test compares with.
    for (int i = 0; i < kResults; ++i) issue();
    results_.download(*group.stream);
    CHECK(group.synchronize().ok(), "{}", group.stream->error().to_string());
    reference_ = results_.bytes();
  }

  void issue() {
    const Tensor result = results_.view(num_issued_ % kResults * elements(), elements());
    if (num_issued_++ % 2 == 0) {
      all_rows(result);
    } else {
      shares(result);
    }
  }
  // The last results.
  void expect_alike() {
    results_.download(*group_.stream);
    ASSERT_TRUE(group_.synchronize().ok()) << group_.stream->error().to_string();
    EXPECT_TRUE(results_.fences_stand());
    EXPECT_EQ(results_.bytes() == reference_, true);
    const auto one = static_cast<size_t>(elements()) * sizeof(BFloat16);
    for (size_t i = 1; i < kResults; ++i)
      EXPECT_EQ(reference_.compare(0, one, reference_, i * one, one), 0) << i;
  }

 private:
  static constexpr int64_t kHidden = 4096;
  static constexpr int64_t kResults = 6;

  int64_t elements() const { return rows_ * kHidden; }
  Tensor in_rows(const Tensor& flat) const { return flat.reshaped({flat.numel() / kHidden, kHidden}); }
  void all_rows(const Tensor& result) {
    group_.stream->copy(x_.view(), term_.view());
    group_.stream->copy(sum_.view(), residual_.view());
    reducer_.all_reduce_add_rms_norm({.x = in_rows(x_.view()),
                                      .residual = in_rows(sum_.view()),
                                      .weight = weight_.view(),
                                      .epsilon = 1e-5f,
                                      .out = in_rows(result)},
                                     *group_.stream);
  }
  void shares(const Tensor& result) {
    const int64_t share = elements() / group_.size();
    const Tensor out = reducer_.shared_out(rows_, kHidden, DType::kBF16);
    const Tensor sum = sum_.view(0, share);
    for (int rank = 0; rank < group_.size(); ++rank)
      group_.stream->copy(reducer_.shared_term(rank, rows_, kHidden, DType::kBF16),
                          in_rows(term_.view(rank * share, share)));
    group_.stream->copy(sum, residual_.view(group_.rank() * share, share));
    reducer_.add_rms_norm_of_shares(
        {.residual = in_rows(sum), .weight = weight_.view(), .epsilon = 1e-5f, .out = out}, *group_.stream);
    group_.stream->copy(result, out);
  }

  GroupUnderTest& group_;
  NormReducer& reducer_;
  int64_t rows_;
  SiteTensor<BFloat16> term_;
  SiteTensor<BFloat16> residual_;
  SiteTensor<BFloat16> weight_;
  SiteTensor<BFloat16> x_;
  SiteTensor<BFloat16> sum_;
  SiteTensor<BFloat16> results_;
  int64_t num_issued_ = 0;
  std::string reference_;
};

class P2pPartsAlone : public testing::TestWithParam<int> {};

TEST_P(P2pPartsAlone, AmongSumsAndNorms) {
  constexpr PeerLimits kLimits{.packets_bytes = 16 << 10,
                               .one_shot_bytes = 256 << 10,
                               .two_shot_bytes = 2 << 20,
                               .norm_bytes = 1 << 20,
                               .shared_bytes = 1 << 20,
                               .parts_bytes = 4 << 20};
  run_with(GetParam(), kLimits, [](World& world, Site& site) {
    GroupUnderTest group = make_group(world, site);
    constexpr int64_t kElements = 1 << 19;
    PartsUnderTest<BFloat16> parts(site, group, kElements);
    NormsBetween norms(site, group);
    for (unsigned seed = 1; seed <= 6; ++seed) {
      const std::vector<Call> calls = calls_in(kElements, group.size(), kKinds, seed);
      std::mt19937 generator(seed);
      parts.restart();
      for (const Call& call : calls) {
        if (generator() % 8 == static_cast<unsigned>(group.rank())) parts.fall_behind(4);
        if (generator() % 2 == 0) norms.issue();
        parts.issue(call);
      }
      norms.expect_alike();
      parts.expect(calls);
    }
  });
}

// On both sides of each limit.
TEST_P(P2pPartsAlone, GoOverPeerMemoryUpToTheLimits) {
  constexpr int64_t kPackets = 256;
  constexpr int64_t kPart = 8192;
  const int size = GetParam();
  // Until the communicators have gone, which is after the body.
  std::vector<int> left(static_cast<size_t>(size));
  run_with(size, PeerLimits{}, [&](World& world, Site& site) {
    int& left_here = left[static_cast<size_t>(world.rank_info().rank)];
    auto check = [&](const PeerLimits& limits, int64_t most) {
      GroupUnderTest group = make_group_without_nccl(world, site, limits, left_here);
      PartsUnderTest<uint8_t> bytes(site, group, 1 << 18);
      PartsUnderTest<BFloat16> floats(site, group, 1 << 17);
      auto try_call = [&](auto& parts, const Call& call, bool over_peers) {
        SCOPED_TRACE(std::to_string(call.count) + " elements, kind " +
                     std::to_string(static_cast<int>(call.kind)) + ", over peers up to " +
                     std::to_string(most));
        const int before = left_here;
        parts.restart();
        parts.issue(call);
        parts.expect(std::span(&call, over_peers ? 1 : 0));
        EXPECT_EQ(left_here - before, over_peers ? 0 : 1);
      };
      for (int64_t part : {int64_t{1}, kPackets - 1, kPackets, kPackets + 1, kPart - 1, kPart, kPart + 1}) {
        for (Kind kind : kMoves) try_call(bytes, {.kind = kind, .count = part}, part <= most);
        for (Kind kind : {Kind::kReduceScatter, Kind::kReduceScatterInPlace}) {
          const int64_t count = (part + 1) / 2;
          try_call(floats, {.kind = kind, .count = count}, 2 * count <= most);
        }
      }
      const int before = left_here;
      SiteTensor<int32_t> words(site, size);
      words.upload(*group.stream);
      group.comm->reduce_scatter(words.view(), words.view(group.rank(), 1), ReduceOp::kSum, *group.stream);
      SiteTensor<float> values(site, size);
      values.upload(*group.stream);
      group.comm->reduce_scatter(values.view(), values.view(group.rank(), 1), ReduceOp::kMax, *group.stream);
      EXPECT_EQ(left_here - before, 2);
      ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
      EXPECT_EQ(left_here - before, 2);
      group.comm->all_gather(values.view(0, 0), values.view(0, 0), *group.stream);
      EXPECT_EQ(left_here - before, 2);
    };
    check({}, 0);
    check({.packets_bytes = kPackets}, kPackets);
    check({.parts_bytes = size * kPart}, kPart);
    check({.packets_bytes = kPackets, .parts_bytes = size * kPart}, kPart);
    check({.packets_bytes = kPackets, .one_shot_bytes = 4 * kPart}, kPackets);
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, P2pPartsAlone, testing::Values(2, 3, 4, 5, 8), [](const auto& instance) {
  return "With" + std::to_string(instance.param);
});

}  // namespace
}  // namespace llm_dist::comm
