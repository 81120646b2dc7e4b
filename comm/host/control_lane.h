// The control connection between rank 0 and a rank of another node: reports towards rank 0, an abort's cause
// both ways.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "comm/host/socket.h"
#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::comm {

enum class ControlKind : uint32_t { kReport = 1, kAbort = 2 };

struct ControlMessage {
  ControlKind kind = ControlKind::kReport;
  std::span<const std::byte> payload;  // valid until the next call
};

// One thread reads; any thread sends.
class ControlLane {
 public:
  explicit ControlLane(Fd fd);

  int fd() const { return fd_.get(); }
  // Whole or not at all, without waiting for room to begin: kResourceExhausted then. `deadline` bounds the
  // rest of what has begun.
  Status try_send(ControlKind kind, std::span<const std::byte> payload, Deadline deadline);
  // As try_send, but waits for room. `cause` is not ok.
  Status send_abort(const Status& cause, Deadline deadline);

  // The next complete message that has come, without waiting.
  std::optional<ControlMessage> poll();
  bool closed() const { return closed_; }

 private:
  struct Head {
    uint32_t kind = 0;
    uint32_t bytes = 0;
  };

  std::span<std::byte> wanted();

  Fd fd_;
  std::mutex send_mutex_;
  bool broken_ = false;  // a message was cut off: nothing can follow it

  Head head_;
  size_t filled_ = 0;
  std::vector<std::byte> payload_;
  bool closed_ = false;
};

// The Status that an abort message carries.
Status abort_cause(const ControlMessage& message);

}  // namespace llm_dist::comm
