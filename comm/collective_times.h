// CollectiveTimes: how long a rank has spent inside its collectives, where that is known at no cost.
#pragma once

#include <array>
#include <cstdint>

namespace llm_dist::comm {

enum class Collective : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kAllToAll,
  kSend,
  kRecv,
};
inline constexpr size_t kNumCollectives = 7;

// From the moment the stream gets to the call to the moment it is done, waiting for peers included.
struct CollectiveTimes {
  std::array<uint64_t, kNumCollectives> calls{};  // by Collective
  std::array<int64_t, kNumCollectives> ns{};
};

// A capability that a Communicator may offer.
class TimesCollectives {
 public:
  virtual ~TimesCollectives() = default;
  // Since construction. Any thread.
  virtual CollectiveTimes collective_times() const = 0;
};

}  // namespace llm_dist::comm
