#include <algorithm>

#include "comm/p2p/peer_group.h"

namespace llm_dist::comm {

int64_t PeerLimits::largest() const { return std::max({packets_bytes, one_shot_bytes, two_shot_bytes}); }

// Between two ranks one shot moves no more than two would. With more of them each shot of everything to
// everyone has that many copies to send, and packets twice as much. What the norm saves by coming along, a
// launch and the way through memory, is the same at all sizes.
PeerLimits default_peer_limits(int group_size) {
  constexpr int64_t kKiB = 1024;
  constexpr int64_t kMost = 8 * kKiB * kKiB;
  if (group_size == 2)
    return {.packets_bytes = 128 * kKiB, .one_shot_bytes = kMost, .norm_bytes = 2048 * kKiB};
  return {.packets_bytes = 64 * kKiB,
          .two_shot_bytes = kMost,
          .norm_bytes = group_size <= 4 ? 512 * kKiB : 256 * kKiB};
}

}  // namespace llm_dist::comm
