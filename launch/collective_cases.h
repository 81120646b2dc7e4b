// The calls that `bench comm` times, and what bandwidth a time means.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "src/device/backend.h"

namespace llm_dist::launch {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  // To the peer and back, ranks in pairs (0 and 1, 2 and 3, …); a time is that of one way.
  kSendRecv,
};
std::string_view to_string(CollectiveKind kind);  // "all_reduce"
Result<CollectiveKind> parse_collective(const std::string& name);

// A call's bytes are those of nccl-tests (doc/PERFORMANCE.md): of the whole tensor, over all ranks' parts
// where it has parts. Algorithm bandwidth is bytes over time; bus bandwidth is that times this factor, what a
// link carries when the call runs at its best, and so comparable between numbers of ranks: 2(n − 1)/n for
// all-reduce, (n − 1)/n for reduce-scatter, all-gather and all-to-all, 1 for broadcast and send.
double bus_factor(CollectiveKind kind, int ranks);

// Buffers for calls of up to `max_bytes` on one group; messages go over `hand_off`, of the same ranks.
class CollectiveCases {
 public:
  static Result<CollectiveCases> create(device::Backend& backend,
                                        comm::Communicator& group,
                                        comm::Communicator& hand_off,
                                        DType dtype,
                                        int64_t max_bytes);
  // What a call of about so many bytes has: whole elements, as many on each rank; at least one.
  int64_t bytes_of(int64_t about) const;
  void issue(CollectiveKind kind, int64_t bytes, device::Stream& stream) const;

 private:
  int ranks() const { return group_->info().size; }
  void ping_pong(int64_t elements, device::Stream& stream) const;

  comm::Communicator* group_ = nullptr;
  comm::Communicator* hand_off_ = nullptr;
  DType dtype_ = DType::kBF16;
  device::Buffer in_;
  device::Buffer out_;
};

}  // namespace llm_dist::launch
