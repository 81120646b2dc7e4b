// Segment: memory that the ranks of one node share.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "comm/host/fd.h"
#include "comm/host/host_world.h"
#include "comm/host/process_watch.h"
#include "comm/host/setup.h"
#include "src/base/status.h"

namespace llm_dist::comm {

// What a rank needs to attach a peer's segment. Plain data: it travels between ranks.
struct SegmentOffer {
  ProcessId owner;
  int32_t fd = -1;
  uint64_t bytes = 0;
  Secret secret{};
};

// A mapped anonymous file (memfd, mode 0600). It never has a name, so that nothing is left behind whichever
// process dies when.
class Segment {
 public:
  Segment() = default;
  static Result<Segment> create(size_t bytes);
  // Another rank's, through /proc/PID/fd. kFailedPrecondition: not visible from here, or not the one
  // offered.
  static Result<Segment> attach(const SegmentOffer& offer);

  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  bool valid() const { return base_ != nullptr; }
  // Zeroed at first, aligned to 64 bytes.
  std::byte* data() const;
  SegmentOffer offer() const;
  // Once everyone has attached.
  void close_file() { file_.reset(); }

 private:
  static Result<Segment> map(Fd file, size_t bytes);

  std::byte* base_ = nullptr;
  size_t mapped_bytes_ = 0;
  Fd file_;
};

// The ranks that share memory with this one, and the memory.
struct NodeMemory {
  std::vector<int> members;  // ascending; at least this rank
  Segment segment;           // made by members[0]
};

// The ids by which ranks are grouped: the hosts, or one for each rank when sockets are forced.
std::vector<std::string> node_ids(const HostWorld& world);
std::vector<int> node_members(const std::vector<std::string>& nodes, int rank);

// Collective. `bytes_here`: what this rank's node needs; 0: this node shares nothing. `format` fills the
// fresh memory before anybody attaches. Where a rank cannot attach, its node's ranks each become a node of
// their own (in `nodes`, the same on every rank) and share nothing.
Result<NodeMemory> share_node_memory(const HostWorld& world,
                                     size_t bytes_here,
                                     const std::function<void(std::byte* memory)>& format,
                                     std::vector<std::string>* nodes);

}  // namespace llm_dist::comm
