// MessageTransport: what a library that passes messages between processes must offer; the collectives on top
// are ours (comm/message_communicator.h), so that every such library has the same arithmetic, deadlines and
// aborts. No call blocks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::comm {

// The messages of one group. Two messages from the same sender with the same tag arrive in the order sent;
// channels do not see each other's. Used by one thread at a time; several channels are used by several
// threads at once.
class MessageChannel {
 public:
  // Tags are below this.
  static constexpr int kTags = 2048;
  // Of one message.
  static constexpr size_t kMaxBytes = size_t{1} << 30;

  virtual ~MessageChannel() = default;
  // `data` stays untouched (recv: unread) until progress() says true. `peer` is a position in the group.
  virtual Status start_send(const void* data, size_t bytes, int peer, int tag) = 0;
  virtual Status start_recv(void* data, size_t bytes, int peer, int tag) = 0;
  // Whether everything started has completed. A message of another length than expected is an error.
  virtual Result<bool> progress() = 0;
  // The peers that what was started still waits for.
  virtual std::vector<int> waiting_for() = 0;
  // Withdraws what was started. A peer that is sending already may still write into the memory of a receive:
  // it stays allocated until the world is closed.
  virtual void cancel() = 0;
};

class MessageTransport {
 public:
  // Of one notice.
  static constexpr size_t kNoticeBytes = 512;

  virtual ~MessageTransport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Where the others have reached this rank: a numeric IP address; empty: the library does not tell.
  virtual std::string address() const = 0;
  // Group `id` (0 ≤ id < kGroups) of these world ranks. Two groups with a rank in common have different ids.
  static constexpr int kGroups = 4096;
  virtual std::unique_ptr<MessageChannel> open_channel(int id, std::span<const int> world_ranks) = 0;
  // A short message outside all groups, sent and forgotten. Any thread.
  virtual void post_notice(int world_rank, std::span<const std::byte> notice) = 0;
  // The next notice that came; empty when there is none. Any thread.
  virtual std::string take_notice() = 0;
  // The library's own end. May block when a peer is dead, so it is called after a barrier only.
  virtual Status finalize() = 0;
};

}  // namespace llm_dist::comm
