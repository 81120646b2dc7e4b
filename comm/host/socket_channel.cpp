#include "comm/host/socket_channel.h"

#include <poll.h>

#include <array>
#include <chrono>
#include <utility>

#include "src/base/check.h"

namespace llm_dist::comm {
namespace {

constexpr auto kSendLimit = std::chrono::milliseconds(100);
// How long a cause may come after the end of the data: they are two connections.
constexpr auto kCauseLimit = std::chrono::milliseconds(200);

}  // namespace

SocketChannel::SocketChannel(HostChannelInfo info, const HostChannelOptions& options, Fd data, Fd control)
    : info_(std::move(info)),
      data_(std::move(data)),
      control_(std::move(control)),
      assembler_(options.reserved_message_bytes, options.max_message_bytes) {}

Status SocketChannel::publish(std::span<const std::byte>, Deadline) {
  CHECK(false, "only rank 0 publishes");
  return ok_status();
}

Result<std::optional<HostReport>> SocketChannel::try_take_report() {
  CHECK(false, "only rank 0 takes reports");
  return std::optional<HostReport>();
}

Result<std::span<const std::byte>> SocketChannel::receive(Deadline deadline) {
  take_control_messages();
  while (true) {
    if (abort_.is_set()) return abort_.cause();
    IoResult result = read_some(data_, assembler_.wanted());
    if (result.state == IoState::kClosed) return closed_by_root();
    if (result.state == IoState::kWouldBlock) RETURN_IF_ERROR(wait_for_data(deadline));
    RETURN_IF_ERROR(assembler_.advance(result.bytes));
    if (assembler_.complete()) return assembler_.take();
  }
}

Status SocketChannel::wait_for_data(Deadline deadline) {
  std::array<pollfd, 3> entries{{{.fd = data_.get(), .events = POLLIN},
                                 {.fd = control_.closed() ? -1 : control_.fd(), .events = POLLIN},
                                 {.fd = abort_.wake_fd(), .events = POLLIN}}};
  int ready = ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline));
  if (ready > 0 && entries[1].revents != 0) take_control_messages();
  if (abort_.is_set()) return abort_.cause();
  if (ready <= 0 && deadline.expired()) return deadline_exceeded("receive: no message");
  return ok_status();
}

void SocketChannel::take_control_messages() {
  while (auto message = control_.poll())
    if (message->kind == ControlKind::kAbort) abort_.set(abort_cause(*message));
}

Status SocketChannel::closed_by_root() {
  auto limit = Deadline::after(kCauseLimit);
  while (!abort_.is_set() && !control_.closed() && !limit.expired()) {
    pollfd entry{.fd = control_.fd(), .events = POLLIN};
    ::poll(&entry, 1, poll_timeout_ms(limit));
    take_control_messages();
  }
  return abort_.is_set() ? abort_.cause() : unavailable("rank 0 has closed the channel");
}

Status SocketChannel::report(std::span<const std::byte> bytes) {
  CHECK_LE(bytes.size(), kMaxReportBytes);
  if (abort_.is_set()) return abort_.cause();
  return control_.try_send(ControlKind::kReport, bytes, Deadline::after(kSendLimit));
}

void SocketChannel::abort(const Status& cause) {
  CHECK(!cause.ok(), "an abort needs a cause");
  if (!abort_.set(cause)) return;
  Status sent = control_.send_abort(cause, Deadline::after(kSendLimit));
  static_cast<void>(sent);  // a rank 0 that cannot be told is gone or stuck: liveness finds out
}

}  // namespace llm_dist::comm
