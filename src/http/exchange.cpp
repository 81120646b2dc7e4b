#include "src/http/exchange.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "src/base/format.h"
#include "src/base/log.h"
#include "src/http/response_writer.h"

namespace llm_dist::http {
namespace {

bool has_no_body(int status) { return status < 200 || status == 204 || status == 304; }

// A line break in a value would let whoever chose the value write header fields of his own.
void append_field(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ");
  for (char c : value) head += c == '\r' || c == '\n' || c == '\0' ? ' ' : c;
  head.append("\r\n");
}

// IMF-fixdate (RFC 9110, 5.6.7).
std::string http_date() {
  std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  size_t size = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return {text, size};
}

bool is_framing_field(std::string_view name) {
  return equals_ignoring_case(name, "Content-Length") || equals_ignoring_case(name, "Transfer-Encoding") ||
         equals_ignoring_case(name, "Connection") || equals_ignoring_case(name, "Date");
}

void append_hex(std::string& text, size_t value) {
  char digits[2 * sizeof value];
  size_t count = 0;
  do {
    digits[count++] = "0123456789abcdef"[value % 16];
  } while ((value /= 16) != 0);
  while (count > 0) text += digits[--count];
}

}  // namespace

Exchange::Exchange(ExchangeTraits traits, std::function<void()> wake)
    : traits_(std::move(traits)), wake_(std::move(wake)), keep_alive_(traits_.keep_alive) {}

void Exchange::add_header(std::string name, std::string value) {
  std::lock_guard lock(mutex_);
  added_.set(std::move(name), std::move(value));
}

bool Exchange::send(const Response& response) {
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  if (!begin(response, false)) return false;
  finish(dropped);
  return true;
}

bool Exchange::start_stream(int status, const Headers& headers) {
  std::lock_guard lock(mutex_);
  Response head{.status = status, .content_type = "", .headers = headers, .body = ""};
  if (!begin(head, true)) return false;
  notify();
  return true;
}

// Starts when all of it is there: what finds no memory on the way leaves room for an error's answer.
bool Exchange::begin(const Response& response, bool streaming) {
  if (started_ || ended_ || disconnected()) return false;
  if (streaming && traits_.http_1_0) keep_alive_ = false;
  std::string head = format("HTTP/1.1 {} {}\r\n", response.status, reason_phrase(response.status));
  append_field(head, "Date", http_date());
  if (!response.content_type.empty()) append_field(head, "Content-Type", response.content_type);
  for (const auto& [name, value] : response.headers)
    if (!is_framing_field(name) &&
        !(equals_ignoring_case(name, "Content-Type") && !response.content_type.empty()))
      append_field(head, name, value);
  for (const auto& [name, value] : added_) append_field(head, name, value);
  if (streaming && !traits_.http_1_0) append_field(head, "Transfer-Encoding", "chunked");
  if (!streaming && !has_no_body(response.status)) {
    uint64_t length = response.source ? response.source->bytes() : response.body.size();
    append_field(head, "Content-Length", std::to_string(length));
  }
  if (!keep_alive_) append_field(head, "Connection", "close");
  if (keep_alive_ && traits_.http_1_0) append_field(head, "Connection", "keep-alive");
  head += "\r\n";
  if (!traits_.head_request && !has_no_body(response.status)) {
    if (!response.source) head += response.body;
    source_ = response.source;
  }
  pending_ = std::move(head);
  started_ = true;
  return true;
}

bool Exchange::write(std::string_view chunk) {
  std::lock_guard lock(mutex_);
  if (!started_ || ended_ || disconnected()) return false;
  // An empty chunk would end the body.
  if (chunk.empty() || traits_.head_request) return true;
  // No reader is so fast that he has taken a chunk before it is written: the largest does not count.
  largest_chunk_ = std::max(largest_chunk_, chunk.size());
  if (pending_.size() + writing_bytes_ > traits_.max_queue_bytes + largest_chunk_) {
    gone_.store(true, std::memory_order_release);
    cut();
    return false;
  }
  append_chunk(chunk);
  notify();
  return !aborted_;
}

void Exchange::append_chunk(std::string_view chunk) {
  if (traits_.http_1_0) {
    pending_ += chunk;
    return;
  }
  // All of it or nothing: a size without its bytes would swallow what comes next.
  constexpr size_t kFrameBytes = 2 * sizeof(size_t) + 4;
  pending_.reserve(pending_.size() + chunk.size() + kFrameBytes);
  append_hex(pending_, chunk.size());
  pending_.append("\r\n").append(chunk).append("\r\n");
}

bool Exchange::end() {
  std::function<void()> dropped;
  std::lock_guard lock(mutex_);
  if (!started_ || ended_ || disconnected()) return false;
  if (!traits_.http_1_0 && !traits_.head_request) pending_ += "0\r\n\r\n";
  finish(dropped);
  return true;
}

void Exchange::finish(std::function<void()>& dropped) {
  ended_ = true;
  dropped.swap(on_disconnect_);
  notify();
}

void Exchange::notify() {
  if (!std::exchange(waiting_, false)) return;
  if (wake_) wake_();
}

void Exchange::cut() {
  aborted_ = true;
  waiting_ = true;  // the connection may be stuck in a socket write: wake it all the same
  notify();
}

void Exchange::abandon() {
  {
    std::lock_guard lock(mutex_);
    if (ended_ || disconnected()) return;
    if (started_) return cut();
  }
  try {
    (void)send(traits_.render_error(500, "the server gave no answer to this request"));
  } catch (const std::exception&) {
    // Nothing may leave a destructor: who cannot be answered is cut off.
    std::lock_guard lock(mutex_);
    cut();
  }
}

void Exchange::on_disconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!detached_) {
      on_disconnect_.swap(callback);
      return;
    }
  }
  callback();
}

Exchange::Next Exchange::next(std::string& bytes) {
  std::lock_guard lock(mutex_);
  bytes.clear();
  writing_bytes_ = 0;
  if (aborted_) return Next::kAbort;
  if (!pending_.empty()) {
    bytes.swap(pending_);
    writing_bytes_ = bytes.size();
    return Next::kWrite;
  }
  if (source_) return Next::kSource;
  if (ended_) return Next::kDone;
  waiting_ = true;
  return Next::kWait;
}

std::shared_ptr<BodySource> Exchange::take_source() {
  std::lock_guard lock(mutex_);
  return std::exchange(source_, nullptr);
}

bool Exchange::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

bool Exchange::must_abort() const {
  std::lock_guard lock(mutex_);
  return aborted_;
}

void Exchange::close_after() {
  std::lock_guard lock(mutex_);
  if (!started_) keep_alive_ = false;
}

bool Exchange::keep_alive() const {
  std::lock_guard lock(mutex_);
  return keep_alive_;
}

void Exchange::disconnect() {
  std::function<void()> callback;
  {
    std::lock_guard lock(mutex_);
    wake_ = nullptr;
    detached_ = true;
    gone_.store(true, std::memory_order_release);
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
}

void Exchange::detach() {
  std::lock_guard lock(mutex_);
  wake_ = nullptr;
  detached_ = true;
}

ResponseWriter::ResponseWriter(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
ResponseWriter::~ResponseWriter() { exchange_->abandon(); }
void ResponseWriter::add_header(std::string name, std::string value) {
  exchange_->add_header(std::move(name), std::move(value));
}
bool ResponseWriter::send(const Response& response) { return exchange_->send(response); }
bool ResponseWriter::start_stream(int status, const Headers& headers) {
  return exchange_->start_stream(status, headers);
}
bool ResponseWriter::write(std::string_view chunk) { return exchange_->write(chunk); }
bool ResponseWriter::end() { return exchange_->end(); }
bool ResponseWriter::disconnected() const { return exchange_->disconnected(); }
void ResponseWriter::on_disconnect(std::function<void()> callback) {
  exchange_->on_disconnect(std::move(callback));
}

}  // namespace llm_dist::http
