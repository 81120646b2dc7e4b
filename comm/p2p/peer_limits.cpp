#include <algorithm>

#include "comm/p2p/peer_layout.h"

namespace llm_dist::comm {

int64_t PeerLimits::largest() const { return std::max({packets_bytes, one_shot_bytes, two_shot_bytes}); }

int64_t PeerLimits::largest_parts(int group_size) const {
  return std::max(parts_bytes, group_size * packets_bytes);
}

// Up to four ranks: measured (docs/collectives.md). With more of them each shot of everything to everyone has
// that many copies to send, and packets twice as much: guesses that stay below what was measured. Sums with a
// norm behind them: all that their kernel takes, measured up to four; where two trips begin is by count of
// bytes. In one trip of some 1.1 µs n - 1 copies leave a rank, in two 2 (n - 1) / n of one: at 370 GB/s that
// takes as long either way with 610 KB (three ranks), 270 KB (four) and 77 KB (eight). Shares: all that the
// largest step has, as long as it is worth the memory; handed to their ranks where products take their blocks
// two rounds, so that the first one's results cross beside the second. Parts: measured between two; the limit
// keeps their memory at 64 MiB.
PeerLimits default_peer_limits(int group_size, const GroupUse& use) {
  constexpr int64_t kKiB = 1024;
  constexpr int64_t kMiB = 1024 * kKiB;
  // Messages: packets as long as they are faster than what is staged, between two. NCCL is faster from 16 MiB
  // on, but its receives wait in a kernel, or longer for an announcement.
  if (use.hands_off) return {.message_bytes = kMostMessageBytes, .message_packets_bytes = 512 * kKiB};
  PeerLimits limits{.packets_bytes = 64 * kKiB,
                    .two_shot_bytes = 16 * kMiB,
                    .norm_bytes = 4 * kMiB,
                    .norm_one_trip_bytes = 64 * kKiB,
                    .shared_bytes = std::min(use.shared_bytes, kMostSharedBytes),
                    .handed_bytes = 12 * kMiB,
                    .parts_bytes = 32 * kMiB};
  switch (group_size) {
    case 2:
      limits.one_shot_bytes = 4 * kMiB;
      limits.norm_one_trip_bytes = limits.norm_bytes;
      break;
    case 3:
      limits.one_shot_bytes = 1 * kMiB;
      limits.norm_one_trip_bytes = 512 * kKiB;
      break;
    case 4:
      limits.one_shot_bytes = 512 * kKiB;
      limits.norm_one_trip_bytes = 256 * kKiB;
      break;
    default: limits.two_shot_bytes = 8 * kMiB;
  }
  return limits;
}

}  // namespace llm_dist::comm
