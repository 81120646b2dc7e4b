#include "comm/tcp/tcp_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "comm/host/socket.h"
#include "comm/message_transport.h"

namespace llm_dist::comm {
namespace {

// Small messages are read together with what follows them.
constexpr size_t kStageBytes = size_t{32} << 10;
// One pump() reads no more, so that a thread with a small message does not wait behind a large one.
constexpr size_t kPumpBytes = size_t{512} << 10;
constexpr size_t kSpareBuffers = 16;

}  // namespace

TcpLink::TcpLink(int rank, Fd fd) : rank_(rank), fd_(std::move(fd)), staged_(kStageBytes) {}

void TcpLink::finish(TcpOperation& operation, Status error) {
  operation.error = std::move(error);
  operation.done.store(true, std::memory_order_release);
}

Status TcpLink::wrong_length(const TcpOperation& operation, uint64_t sent) const {
  return internal_error(
      format("rank {} sent {} bytes where {} were expected: the ranks are not in the same call",
             rank_,
             sent,
             operation.bytes));
}

void TcpLink::close(const std::string& why) {
  if (!closed_.empty()) return;
  closed_ = why;
  for (TcpOperation* operation : receives_) finish(*operation, unavailable(closed_));
  receives_.clear();
  if (receiving_ != nullptr) finish(*receiving_, unavailable(closed_));
  receiving_ = nullptr;
  for (Outgoing& message : outgoing_)
    if (message.operation != nullptr) finish(*message.operation, unavailable(closed_));
  outgoing_.clear();
}

// --- sending ---

void TcpLink::start_send(TcpOperation& operation) {
  std::lock_guard lock(mutex_);
  if (!closed_.empty()) return finish(operation, unavailable(closed_));
  outgoing_.push_back({.header = {operation.group, operation.tag, operation.bytes},
                       .data = operation.data,
                       .own = {},
                       .operation = &operation});
  if (outgoing_.size() == 1) write_out();
}

void TcpLink::post_notice(std::span<const std::byte> notice) {
  std::lock_guard lock(mutex_);
  if (!closed_.empty()) return;
  Outgoing& message = outgoing_.emplace_back();
  message.header = {.group = kNoticeGroup, .tag = 0, .bytes = notice.size()};
  message.own.assign(notice.begin(), notice.end());
  message.data = message.own.data();
  if (outgoing_.size() == 1) write_out();
}

// True when the front message is through.
bool TcpLink::write_front() {
  Outgoing& message = outgoing_.front();
  auto header = std::as_bytes(std::span(&message.header, 1));
  size_t total = header.size() + message.header.bytes;
  while (message.sent < total) {
    auto head = header.subspan(std::min(message.sent, header.size()));
    size_t body_sent = message.sent - (header.size() - head.size());
    std::span body(message.data + body_sent, message.header.bytes - body_sent);
    IoResult result = write_some(fd_, head, body);
    message.sent += result.bytes;
    if (result.state == IoState::kWouldBlock) return false;
    if (result.state == IoState::kClosed) {
      read_in();  // what it said before
      close(format("rank {} has closed its connection", rank_));
      return false;
    }
  }
  return true;
}

void TcpLink::write_out() {
  while (!outgoing_.empty() && write_front()) {
    TcpOperation* operation = outgoing_.front().operation;
    outgoing_.erase(outgoing_.begin());
    if (operation != nullptr) finish(*operation, {});
  }
}

// --- receiving ---

// False when no message for it has begun to arrive.
bool TcpLink::take_early(TcpOperation& operation) {
  auto early = std::find_if(early_.begin(), early_.end(), [&](const Early& message) {
    return message.header.group == operation.group && message.header.tag == operation.tag;
  });
  if (early == early_.end()) return false;
  bool fits = early->header.bytes == operation.bytes;
  size_t there = early->complete ? early->bytes.size() : filled_;
  if (fits) std::copy_n(early->bytes.begin(), there, operation.data);
  bool rest_comes = !early->complete && closed_.empty();
  if (rest_comes) {
    receiving_ = fits ? &operation : nullptr;
    sink_ = fits ? Sink::kOperation : Sink::kNowhere;
  }
  if (!fits) {
    finish(operation, wrong_length(operation, early->header.bytes));
  } else if (!rest_comes) {
    finish(operation, early->complete ? ok_status() : unavailable(closed_));
  }
  if (spare_.size() < kSpareBuffers) spare_.push_back(std::move(early->bytes));
  early_.erase(early);
  return true;
}

void TcpLink::start_recv(TcpOperation& operation) {
  std::lock_guard lock(mutex_);
  if (take_early(operation)) return;
  if (!closed_.empty()) return finish(operation, unavailable(closed_));
  receives_.push_back(&operation);
}

std::vector<std::byte> TcpLink::spare_buffer(size_t bytes) {
  auto fits = std::find_if(
      spare_.begin(), spare_.end(), [&](const auto& buffer) { return buffer.capacity() >= bytes; });
  if (fits == spare_.end() && !spare_.empty()) fits = spare_.end() - 1;
  std::vector<std::byte> buffer;
  if (fits != spare_.end()) {
    buffer = std::move(*fits);
    spare_.erase(fits);
  }
  buffer.resize(bytes);
  return buffer;
}

// A header is complete: where its message goes.
void TcpLink::begin_body() {
  filled_ = 0;
  if (header_.group == kNoticeGroup) {
    if (header_.bytes > MessageTransport::kNoticeBytes) return close(format("rank {} sends nonsense", rank_));
    notice_.resize(header_.bytes);
    sink_ = Sink::kNotice;
  } else {
    auto waits = std::find_if(receives_.begin(), receives_.end(), [&](const TcpOperation* operation) {
      return operation->group == header_.group && operation->tag == header_.tag;
    });
    if (header_.bytes > MessageChannel::kMaxBytes) return close(format("rank {} sends nonsense", rank_));
    if (waits == receives_.end()) {
      early_.push_back({.header = header_, .bytes = spare_buffer(header_.bytes)});
      sink_ = Sink::kEarly;
    } else {
      receiving_ = *waits;
      receives_.erase(waits);
      sink_ = Sink::kOperation;
      if (receiving_->bytes != header_.bytes) {
        finish(*receiving_, wrong_length(*receiving_, header_.bytes));
        receiving_ = nullptr;
        sink_ = Sink::kNowhere;
      }
    }
  }
  if (header_.bytes == 0) end_body();
}

std::span<std::byte> TcpLink::body_space() {
  size_t left = header_.bytes - filled_;
  switch (sink_) {
    case Sink::kOperation: return {receiving_->data + filled_, left};
    case Sink::kEarly: return {early_.back().bytes.data() + filled_, left};
    case Sink::kNotice: return {reinterpret_cast<std::byte*>(notice_.data()) + filled_, left};
    default: return {};
  }
}

void TcpLink::end_body() {
  switch (sink_) {
    case Sink::kOperation:
      finish(*receiving_, {});
      receiving_ = nullptr;
      break;
    case Sink::kEarly: early_.back().complete = true; break;
    case Sink::kNotice: notices_.push_back(notice_); break;
    default: break;
  }
  sink_ = Sink::kHeader;
  filled_ = 0;
}

void TcpLink::add_body(std::span<const std::byte> bytes) {
  auto space = body_space();
  if (!space.empty()) std::copy(bytes.begin(), bytes.end(), space.begin());
  filled_ += bytes.size();
  if (filled_ == header_.bytes) end_body();
}

// One piece of what was staged: of a header or of a body. How many bytes it was.
size_t TcpLink::take_staged(std::span<const std::byte> bytes) {
  if (sink_ == Sink::kHeader) {
    auto header = std::as_writable_bytes(std::span(&header_, 1)).subspan(filled_);
    size_t n = std::min(header.size(), bytes.size());
    std::copy_n(bytes.begin(), n, header.begin());
    filled_ += n;
    if (filled_ == sizeof header_) begin_body();
    return n;
  }
  size_t n = std::min<size_t>(bytes.size(), header_.bytes - filled_);
  add_body(bytes.first(n));
  return n;
}

void TcpLink::read_in() {
  size_t budget = kPumpBytes;
  while (closed_.empty() && budget > 0) {
    std::span<std::byte> space = sink_ == Sink::kHeader ? std::span<std::byte>() : body_space();
    bool direct = space.size() >= kStageBytes;
    if (direct) space = space.first(std::min(space.size(), budget));
    IoResult result = read_some(fd_, direct ? space : std::span(staged_));
    if (result.state == IoState::kWouldBlock) return;
    if (result.state == IoState::kClosed) {
      peer_finished_ = true;
      return close(format("rank {} has closed its connection", rank_));
    }
    budget -= std::min(budget, result.bytes);
    if (direct) {
      filled_ += result.bytes;
      if (filled_ == header_.bytes) end_body();
      continue;
    }
    std::span<const std::byte> bytes = std::span(staged_).first(result.bytes);
    while (!bytes.empty() && closed_.empty()) bytes = bytes.subspan(take_staged(bytes));
    if (result.bytes < staged_.size()) return;  // that was all
  }
}

void TcpLink::pump() {
  std::lock_guard lock(mutex_);
  if (!closed_.empty()) return;
  write_out();
  read_in();
}

bool TcpLink::take_notice(std::string* notice) {
  std::lock_guard lock(mutex_);
  if (notices_.empty()) return false;
  *notice = std::move(notices_.front());
  notices_.pop_front();
  return true;
}

void TcpLink::cancel(TcpOperation& operation) {
  std::lock_guard lock(mutex_);
  if (operation.done.load(std::memory_order_acquire)) return;
  std::erase(receives_, &operation);
  if (receiving_ == &operation) {
    receiving_ = nullptr;
    sink_ = Sink::kNowhere;
  }
  for (auto message = outgoing_.begin(); message != outgoing_.end(); ++message) {
    if (message->operation != &operation) continue;
    if (message->sent == 0) {
      outgoing_.erase(message);
    } else {
      // The rest has to follow, from memory that stays.
      message->own.assign(message->data, message->data + message->header.bytes);
      message->data = message->own.data();
      message->operation = nullptr;
    }
    return;
  }
}

void TcpLink::finish_sending() {
  std::lock_guard lock(mutex_);
  if (closed_.empty()) ::shutdown(fd_.get(), SHUT_WR);
}

bool TcpLink::peer_finished() {
  std::lock_guard lock(mutex_);
  if (closed_.empty()) read_in();
  return peer_finished_ || !closed_.empty();
}

}  // namespace llm_dist::comm
