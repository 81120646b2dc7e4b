// The wait of everything that runs over a MessageChannel: it ends with the messages, the group's error, or
// the deadline, and shares the core with whoever the messages come from.
#pragma once

#include <span>
#include <string_view>

#include "comm/first_error.h"
#include "comm/message_transport.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

// Looks for word from peers that ended a group; called now and then while a wait goes on.
class NoticeReader {
 public:
  virtual ~NoticeReader() = default;
  virtual void read_notices() = 0;
};

// How a thread passes the time until a peer's message is there. A peer in step is here within microseconds,
// and yielding lets it run where cores are few. But a yield to a stranger that computes costs that one's
// whole time slice, for each message: once one did, this thread sleeps for moments instead, which the system
// makes good by waking it promptly.
class Backoff {
 public:
  // Sleeps are never longer than `longest_sleep`.
  explicit Backoff(Duration longest_sleep = kLongestSleep) : longest_sleep_(longest_sleep) {}
  void pause(Duration waited);
  // Of one who has waited for so long and no longer yields; at most `longest`.
  static Duration sleep_after(Duration waited, Duration longest);

  static constexpr Duration kShortestSleep = std::chrono::microseconds(20);
  static constexpr Duration kLongestSleep = std::chrono::milliseconds(2);

 private:
  Duration longest_sleep_;
  TimePoint shared_until_{};  // somebody else computes on this core
  bool wakes_on_time_ = false;
};

struct MessageWait {
  const FirstError& error;
  NoticeReader& notices;
  std::span<const int> world_ranks;  // the group's, for messages
  std::string_view group;            // its name
  Backoff& backoff;                  // of the one thread that waits
};

// Ends when all that was started on `channel` is complete. On failure it is withdrawn; deadline_exceeded
// names `what` and the ranks that did not come.
Status wait_for_messages(MessageChannel& channel,
                         const MessageWait& wait,
                         Deadline deadline,
                         std::string_view what);

}  // namespace llm_dist::comm
