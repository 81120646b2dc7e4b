// A group of GPUs of one host that read and write each other's memory: how its ranks get there, in two
// exchanges between the hosts. Implemented in the NCCL module (comm/nccl/nccl_module.h): a group of GPUs
// always has NCCL beside it, for what peer memory is not used for.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace llm_dist::comm {

// Up to how many bytes an all-reduce goes each way; 0: never. Each way has memory of its own on every GPU, a
// small multiple of its limit (peer_layout.h). The smallest fitting way is taken, in this order. A gather,
// all-to-all or reduce-scatter goes by packets when one rank's part fits, or else as parts_bytes says.
struct PeerLimits {
  int64_t packets_bytes = 0;   // everything to everyone, each 8 bytes with their number: one trip, no fence
  int64_t one_shot_bytes = 0;  // everything to everyone, then a flag
  int64_t two_shot_bytes = 0;  // a part of the sum each, then the parts of everyone
  // Up to here a sum goes into residual stream and norm in one kernel (comm/norm_reducer.h). Up to the second
  // terms go to everyone, in one trip, as those of a single row always do; beyond, each rank sums a part of
  // every row, and hands out the sums.
  int64_t norm_bytes = 0;
  int64_t norm_one_trip_bytes = 0;
  // Up to here ranks that share the residual stream sum, add and norm in one kernel. Memory of this size
  // twice. From the second on, which 0 does not end, a rank's terms of another's rows stand with that one,
  // where terms are handed at all.
  int64_t shared_bytes = 0;
  int64_t handed_bytes = 0;
  // Up to here, in all ranks' parts together, ranks exchange parts in one shot. Memory of this size twice, in
  // which one-shot sums have their place, too.
  int64_t parts_bytes = 0;
  // Up to here a message from one rank to another goes over peer memory, and up to the second as packets.
  // Memory does not grow with either, and only groups that hand off have it.
  int64_t message_bytes = 0;
  int64_t message_packets_bytes = 0;
  bool operator==(const PeerLimits&) const = default;
  int64_t largest() const;                      // all-reduce
  int64_t largest_parts(int group_size) const;  // exchange, of all parts together; one of fewer bytes fits
};
inline constexpr int64_t kMostSharedBytes = int64_t{512} << 20;  // PeerLimits::shared_bytes of any group
// Of so many ranks, by what their group is for.
PeerLimits default_peer_limits(int group_size, const GroupUse& use);

inline constexpr int kMaxPeerRanks = 8;

struct PeerGroup {
  CommInfo info;
  int device_index = 0;
  PeerLimits limits;
  // Returns ok when every rank of the group has called it: only then is memory given back that a peer may
  // have mapped. Called once, at the end, unless the group was aborted.
  std::function<Status()> leave;
};

// One rank's memory for its peers. Used in this order, once; a rank whose step fails says so to the others,
// which then go no further either.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  // Takes the memory. Returns what the peers need to know of it, kPeerCardBytes long.
  virtual Result<std::string> prepare() = 0;
  // Opens the memory of all others, from their cards in rank order. failed_precondition names a rank whose
  // GPU cannot be reached.
  virtual Status open(std::span<const std::string> cards) = 0;
  // Sums of floats, gathers, all-to-alls and messages go over peer memory as far as the limits allow, all
  // else to `fallback`. Also a NormReducer.
  virtual std::unique_ptr<Communicator> connect(std::unique_ptr<Communicator> fallback) = 0;
};

inline constexpr size_t kPeerCardBytes = 128;

}  // namespace llm_dist::comm
