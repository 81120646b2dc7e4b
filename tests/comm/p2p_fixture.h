// Ranks that share peer memory, for tests of what is built on it. A world of threads, one for each visible
// GPU; or, under mpirun, of processes. The program exits with 77 where there are fewer than two GPUs. With
// LLM_DIST_TEST_RANKS_SHARE_GPU=1 up to three threads share one, with another communicator in NCCL's place.
#pragma once

#include <gtest/gtest.h>

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

// `body` on `size` ranks in threads of this process; skips the test where there are fewer GPUs, or too many
// ranks to share one, and in a launcher's processes. `limits`: none for the defaults.
void run_in_threads(int size, const std::optional<PeerLimits>& limits, const RankBody& body);

// The same in a launcher's processes where there are any; skips where those are not `size`.
void run_with(int size, const std::optional<PeerLimits>& limits, const RankBody& body);

// A group over peer memory with nothing behind it. `left`: counts the calls that do not go over peer memory;
// they do nothing.
GroupUnderTest make_group_without_nccl(World& world, Site& site, const PeerLimits& limits, int& left);

// Rounding shows in its sums.
template <typename T>
T scattered_value(uint64_t seed, int64_t index) {
  uint64_t mixed = (static_cast<uint64_t>(index) + (seed << 32)) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u;
  return from_float<T>(static_cast<float>(mixed >> 40) * 0x1p-22f - 2.0f);
}

}  // namespace llm_dist::comm
