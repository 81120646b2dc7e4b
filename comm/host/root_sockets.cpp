#include "comm/host/root_sockets.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "comm/host/service_thread.h"
#include "src/base/format.h"

namespace llm_dist::comm {
namespace {

constexpr size_t kReportSlots = 256;
constexpr auto kAbortSendLimit = std::chrono::milliseconds(100);
// How long an abort by a rank of rank 0's node takes at most to go on to other nodes.
constexpr int kRingLookMs = 50;
constexpr int kQueueLookMs = 2;

}  // namespace

RootSockets::RootSockets(std::vector<RemoteRank> remotes, LocalAbort* abort, NodeRing* ring)
    : abort_(abort), ring_(ring), reports_(kReportSlots) {
  for (auto& remote : remotes)
    remotes_.push_back(
        std::make_unique<Remote>(remote.rank, std::move(remote.data), std::move(remote.control)));
  unfinished_.reserve(remotes_.size());
  for (auto& slot : reports_) slot.data.resize(kMaxReportBytes);
  taken_.data.resize(kMaxReportBytes);
  server_ = start_service_thread("host-channel", [this] { serve(); });
}

RootSockets::~RootSockets() {
  stop_.set(cancelled("closing"));
  server_.join();
}

bool RootSockets::push(Remote& remote, const MessageHeader& header, std::span<const std::byte> message) {
  auto head = std::as_bytes(std::span(&header, 1));
  size_t total = head.size() + message.size();
  while (remote.sent < total && !remote.left) {
    auto head_left = head.subspan(std::min(remote.sent, head.size()));
    auto message_left = message.subspan(remote.sent - (head.size() - head_left.size()));
    IoResult result = write_some(remote.data, head_left, message_left);
    remote.sent += result.bytes;
    if (result.state == IoState::kWouldBlock) return false;
    if (result.state == IoState::kClosed) remote.left = true;
  }
  return true;
}

Status RootSockets::has_left(const Remote& remote) {
  return unavailable(format("rank {} has left the channel", remote.rank));
}

Status RootSockets::publish(std::span<const std::byte> message, Deadline deadline) {
  MessageHeader header = message.size();
  unfinished_.clear();
  for (auto& remote : remotes_) {
    if (remote->left) return has_left(*remote);
    remote->sent = 0;
    unfinished_.push_back(remote.get());
  }
  while (true) {
    std::erase_if(unfinished_, [&](Remote* remote) { return push(*remote, header, message); });
    if (unfinished_.empty()) break;
    RETURN_IF_ERROR(wait_writable(deadline));
  }
  // One that leaves after it has got the whole message is in order.
  for (auto& remote : remotes_)
    if (remote->sent < sizeof(header) + message.size()) return has_left(*remote);
  return ok_status();
}

Status RootSockets::wait_writable(Deadline deadline) {
  // Whichever rank is behind: the first has to catch up in any case.
  Remote& remote = *unfinished_.front();
  std::array<pollfd, 2> entries{
      {{.fd = remote.data.get(), .events = POLLOUT}, {.fd = abort_->wake_fd(), .events = POLLIN}}};
  ::poll(entries.data(), entries.size(), poll_timeout_ms(deadline));
  if (abort_->is_set()) return abort_->cause();
  if (deadline.expired()) return deadline_exceeded(format("publish: rank {} does not read", remote.rank));
  return ok_status();
}

void RootSockets::send_abort(const Status& cause) {
  auto deadline = Deadline::after(kAbortSendLimit);
  for (auto& remote : remotes_) {
    Status sent = remote->control.send_abort(cause, deadline);
    if (!sent.ok()) remote->left = true;  // its liveness watch will tell it
  }
}

void RootSockets::spread_abort(const Status& cause) {
  if (ring_ != nullptr) ring_->abort(cause);
  if (abort_->set(cause)) send_abort(cause);
}

void RootSockets::serve() {
  std::vector<pollfd> entries(remotes_.size() + 1);
  entries.back() = {.fd = stop_.wake_fd(), .events = POLLIN};
  while (!stop_.is_set()) {
    bool full = queue_full();
    for (size_t i = 0; i < remotes_.size(); ++i) {
      bool listen = !full && !remotes_[i]->control.closed();
      entries[i] = {.fd = listen ? remotes_[i]->control.fd() : -1, .events = POLLIN};
    }
    int look_ms = full ? kQueueLookMs : ring_ != nullptr ? kRingLookMs : -1;
    ::poll(entries.data(), entries.size(), look_ms);
    for (size_t i = 0; i < remotes_.size(); ++i)
      if (entries[i].fd >= 0 && entries[i].revents != 0) serve_remote(*remotes_[i]);
    if (ring_ != nullptr && ring_->aborted() && !abort_->is_set()) spread_abort(ring_->cause());
  }
}

void RootSockets::serve_remote(Remote& remote) {
  while (!queue_full()) {
    auto message = remote.control.poll();
    if (!message) break;
    if (message->kind == ControlKind::kAbort)
      spread_abort(abort_cause(*message));
    else
      queue_report(remote.rank, message->payload);
  }
  if (remote.control.closed()) remote.left = true;
}

bool RootSockets::queue_full() const {
  std::lock_guard lock(reports_mutex_);
  return report_count_ == reports_.size();
}

void RootSockets::queue_report(int rank, std::span<const std::byte> bytes) {
  std::lock_guard lock(reports_mutex_);
  Report& slot = reports_[(first_report_ + report_count_++) % reports_.size()];
  slot.rank = rank;
  slot.bytes = std::min(bytes.size(), slot.data.size());
  std::copy_n(bytes.begin(), slot.bytes, slot.data.begin());
}

std::optional<HostReport> RootSockets::try_take_report() {
  std::lock_guard lock(reports_mutex_);
  if (report_count_ == 0) return std::nullopt;
  std::swap(taken_, reports_[first_report_]);
  first_report_ = (first_report_ + 1) % reports_.size();
  --report_count_;
  return HostReport{.rank = taken_.rank, .bytes = std::span(taken_.data).first(taken_.bytes)};
}

}  // namespace llm_dist::comm
