#include "comm/host/control_lane.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "comm/host/host_channel.h"
#include "comm/host/once_record.h"
#include "comm/host/setup.h"

namespace llm_dist::comm {

ControlLane::ControlLane(Fd fd)
    : fd_(std::move(fd)), payload_(std::max(kMaxReportBytes, sizeof(PlainCause))) {}

Status ControlLane::try_send(ControlKind kind, std::span<const std::byte> payload, Deadline deadline) {
  std::lock_guard lock(send_mutex_);
  if (broken_) return unavailable("the connection to the peer is broken");
  Head head{.kind = static_cast<uint32_t>(kind), .bytes = static_cast<uint32_t>(payload.size())};
  auto head_bytes = std::as_bytes(std::span(&head, 1));
  IoResult sent = write_some(fd_, head_bytes, payload);
  if (sent.state == IoState::kWouldBlock) return resource_exhausted("the peer takes no messages");
  if (sent.state == IoState::kClosed) return unavailable("the peer has left the channel");
  Status status;
  if (sent.bytes < sizeof(head)) status = write_fully(fd_, head_bytes.subspan(sent.bytes), deadline);
  size_t payload_sent = sent.bytes > sizeof(head) ? sent.bytes - sizeof(head) : 0;
  if (status.ok()) status = write_fully(fd_, payload.subspan(payload_sent), deadline);
  broken_ = !status.ok();
  return status;
}

Status ControlLane::send_abort(const Status& cause, Deadline deadline) {
  PlainCause plain = to_plain(cause);
  while (true) {
    Status status = try_send(ControlKind::kAbort, std::as_bytes(std::span(&plain, 1)), deadline);
    if (status.code() != StatusCode::kResourceExhausted) return status;
    RETURN_IF_ERROR(wait_ready(fd_, POLLOUT, deadline));
  }
}

std::span<std::byte> ControlLane::wanted() {
  if (filled_ < sizeof(head_)) return std::as_writable_bytes(std::span(&head_, 1)).subspan(filled_);
  return std::span(payload_).first(head_.bytes).subspan(filled_ - sizeof(head_));
}

std::optional<ControlMessage> ControlLane::poll() {
  while (!closed_) {
    if (filled_ >= sizeof(head_) && filled_ == sizeof(head_) + head_.bytes) {
      filled_ = 0;
      return ControlMessage{static_cast<ControlKind>(head_.kind), std::span(payload_).first(head_.bytes)};
    }
    IoResult result = read_some(fd_, wanted());
    filled_ += result.bytes;
    if (result.state == IoState::kWouldBlock) break;
    bool garbage = filled_ >= sizeof(head_) && head_.bytes > payload_.size();
    closed_ = result.state == IoState::kClosed || garbage;
  }
  return std::nullopt;
}

Status abort_cause(const ControlMessage& message) {
  PlainCause plain;
  std::string_view bytes(reinterpret_cast<const char*>(message.payload.data()), message.payload.size());
  if (!from_bytes(bytes, &plain)) return aborted("a peer aborted; its cause is not readable");
  return to_status(plain);
}

}  // namespace llm_dist::comm
