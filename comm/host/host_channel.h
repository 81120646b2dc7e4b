// HostChannel: control messages between the hosts' sides of the ranks (step plans, prompt tokens, reports).
// Tensors go through Communicator.
//
// Inside a node it is a ring in shared memory that never has a name, so that nothing is left behind whatever
// dies; between nodes it is a pair of TCP connections from rank 0 to each rank, guarded by a secret that is
// drawn anew for every channel.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/host/host_world.h"
#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::comm {

struct HostChannelInfo {
  int rank = 0;
  int size = 1;
  std::string transport;  // "none", "shared memory", "sockets", "shared memory and sockets"
  std::string address;    // rank 0's "10.0.0.1:40213"; empty without sockets
};

struct HostReport {
  int rank = 0;
  std::span<const std::byte> bytes;  // valid until the next try_take_report()
};

inline constexpr size_t kMaxReportBytes = 4096;

// publish, receive, report and try_take_report are each called by one thread at a time; abort and info by
// any. After an abort every call returns its cause.
class HostChannel {
 public:
  // Peers that still receive get kUnavailable once they have read what was published.
  virtual ~HostChannel() = default;
  virtual const HostChannelInfo& info() const = 0;

  // Rank 0: hands `message` (any size up to max_message_bytes) to every other rank, in order. Waits while a
  // reader is a whole ring behind; running out of time then aborts the channel, since some ranks may hold
  // half of the message. kUnavailable: a rank has left; the others may have got the message.
  virtual Status publish(std::span<const std::byte> message, Deadline deadline) = 0;
  // Other ranks: the next message, valid until the next receive(). kDeadlineExceeded: none came; call
  // again.
  virtual Result<std::span<const std::byte>> receive(Deadline deadline) = 0;

  // Other ranks: at most kMaxReportBytes to rank 0. Never waits: kResourceExhausted when rank 0 is too far
  // behind.
  virtual Status report(std::span<const std::byte> bytes) = 0;
  // Rank 0: the next report of any rank; each rank's come in its order.
  virtual Result<std::optional<HostReport>> try_take_report() = 0;

  // Every rank's blocked and later calls return `cause` (not ok; its text is cut to 480 bytes). The first
  // cause stays. Waits at most 100 ms, on a peer whose socket is full.
  virtual void abort(const Status& cause) = 0;
};

struct HostChannelOptions {
  HostWorld world;
  size_t ring_bytes = size_t{1} << 20;              // a power of two; longer messages go through in pieces
  size_t reserved_message_bytes = size_t{1} << 16;  // messages up to here allocate nothing
  size_t max_message_bytes = size_t{1} << 30;
};

// Collective: every rank of the world calls it; all succeed or all fail with the first rank's reason.
Result<std::unique_ptr<HostChannel>> make_host_channel(const HostChannelOptions& options);

}  // namespace llm_dist::comm
