// Ranks that share peer memory, for tests of what is built on it. A world of threads, one for each visible
// GPU; or, under mpirun, of processes. The program exits with 77 where there are fewer than two GPUs. With
// LLM_DIST_TEST_RANKS_SHARE_GPU=1 some threads share one, with another communicator in NCCL's place.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <tuple>

#include "comm/p2p_groups.h"
#include "tests/comm/conformance_group.h"
#include "tests/comm/gpu_ranks.h"

namespace llm_dist::comm {

// Bytes: all messages of these tests.
inline constexpr int64_t kEverything = 8 << 20;

inline constexpr SiteTraits kPeerTraits{.sums_in_rank_order = true,
                                        .operations_end_themselves = false,
                                        .streams_may_stall = false,
                                        .abort_seconds = 3};

// Ranks that may share a GPU: with more, all blocks of the largest two-shot sums would not have room on an
// H100.
inline constexpr int kMostSharing = 3;

// `body` on `size` ranks in threads of this process; skips the test where there are fewer GPUs, or more than
// `most_sharing` ranks to share one, and in a launcher's processes. `limits`: none for the defaults.
void run_in_threads(int size,
                    const std::optional<PeerLimits>& limits,
                    const RankBody& body,
                    int most_sharing = kMostSharing);

// The same in a launcher's processes where there are any; skips where those are not `size`.
void run_with(int size,
              const std::optional<PeerLimits>& limits,
              const RankBody& body,
              int most_sharing = kMostSharing);

struct Ways {
  const char* name;
  std::optional<PeerLimits> limits;  // none: the defaults
};

// Tests of so many ranks, over these ways.
class OverWays : public testing::TestWithParam<std::tuple<int, Ways>> {
 protected:
  int num_ranks() const { return std::get<0>(GetParam()); }
  void run(const RankBody& body, int most_sharing = kMostSharing) const {
    run_with(num_ranks(), std::get<1>(GetParam()).limits, body, most_sharing);
  }
};
std::string name_of_ways(const testing::TestParamInfo<std::tuple<int, Ways>>& instance);

// A case of the conformance suite over them.
using CaseOverWays = std::tuple<int, Ways, ConformanceCase>;
std::string name_of_case(const testing::TestParamInfo<CaseOverWays>& instance);
// Cases for two, three and four ranks, where `takes` says so of the ways and the case's name.
std::vector<CaseOverWays> cases_over(std::span<const Ways> all_ways,
                                     const std::function<bool(const Ways&, std::string_view)>& takes);

// A group over peer memory with nothing behind it. `left`: counts the calls that do not go over peer memory;
// they do nothing.
GroupUnderTest make_group_without_nccl(World& world, Site& site, const PeerLimits& limits, int& left);

// What the stream has been given waits for a peer.
void expect_waiting(device::Stream& stream);

// The ranks that are `waiting` issue what a peer never answers, find that it waits, and abort the group: that
// ends it, and refuses what is issued then. The others leave later.
struct DoomedCalls {
  bool waiting = false;
  std::function<void()> issue;
  std::function<void()> issue_more;
  std::function<void()> issue_before_leaving = [] {};  // by the rank that does not wait
};
void expect_abort_to_end(World& world, GroupUnderTest& group, const DoomedCalls& calls);

// What issue() issues, once as it is and then in a graph, replayed by ranks that are now ahead and now
// behind.
struct Replays {
  std::function<void()> issue;
  std::function<void()> restart = [] {};  // before the first time and every round
  std::function<void()> expect;           // after every round
  int rounds = 1;
  int replays = 0;  // of a round
};
void replay_in_graph(World& world, Site& site, GroupUnderTest& group, const Replays& replays);

// body(twin, group) with a Twin<T>(site, group, more...). Ranks begin together, and memory goes when all have
// ended.
template <template <typename> typename Twin, typename T, typename Body, typename... More>
void with_twin(World& world, Site& site, Body&& body, More&&... more) {
  constexpr double kMeetSeconds = 60;
  GroupUnderTest group = make_group(world, site, std::string(to_string(DTypeOf<T>::kValue)));
  Twin<T> twin(site, group, std::forward<More>(more)...);
  ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(kMeetSeconds)).ok());
  body(twin, group);
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(kMeetSeconds)).ok());
}

// Rounding shows in its sums.
template <typename T>
T scattered_value(uint64_t seed, int64_t index) {
  uint64_t mixed = (static_cast<uint64_t>(index) + (seed << 32)) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u;
  return from_float<T>(static_cast<float>(mixed >> 40) * 0x1p-22f - 2.0f);
}

}  // namespace llm_dist::comm
