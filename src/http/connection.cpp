#include "src/http/connection.h"

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "src/base/log.h"
#include "src/base/type_name.h"

namespace llm_dist::http {
namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);
// How long a client may go on sending behind an answer before its connection is reset.
constexpr Duration kLingerTime = std::chrono::seconds(1);
// The same where the answer cuts a body short, which the client may send to its end before it looks for an
// answer (RFC 9112, 9.6): silent for so long, or sending for so long.
constexpr Duration kBodyLingerSilence = std::chrono::seconds(5);
constexpr Duration kBodyLingerTime = std::chrono::seconds(30);
// In front of a request, where some clients end a body with one (RFC 9112, 2.2).
constexpr int kMaxEmptyLines = 4;
// How long what a client sends ahead is left in its socket while an answer to it is open.
constexpr Duration kUnreadTime = std::chrono::seconds(1);
// How long a client may go on sending a request to a server that is to end.
constexpr Duration kLastRequestTime = std::chrono::seconds(1);
// What of a body is on its way between socket and disk.
constexpr size_t kPieceBytes = 256 << 10;
// A slow disk holds up bodies only; more threads would not make it faster.
constexpr size_t kDiskThreads = 2;

}  // namespace

void ServerCore::enter(std::shared_ptr<Connection> connection) {
  std::lock_guard lock(mutex_);
  open_.insert(std::move(connection));
}

void ServerCore::leave(const std::shared_ptr<Connection>& connection) {
  std::lock_guard lock(mutex_);
  open_.erase(connection);
  left_.notify_all();
}

size_t ServerCore::num_connections() const {
  std::lock_guard lock(mutex_);
  return open_.size();
}

std::vector<std::shared_ptr<Connection>> ServerCore::connections() const {
  std::lock_guard lock(mutex_);
  return {open_.begin(), open_.end()};
}

bool ServerCore::wait_until_empty(Deadline deadline) {
  std::unique_lock lock(mutex_);
  return left_.wait_until(lock, deadline.when(), [&] { return open_.empty(); });
}

asio::thread_pool& ServerCore::disk_threads() {
  std::lock_guard lock(mutex_);
  if (!disk_threads_) disk_threads_.emplace(kDiskThreads);
  return *disk_threads_;
}

void ServerCore::stop_disk_threads() {
  if (disk_threads_) disk_threads_->join();
}

Connection::Connection(std::unique_ptr<Transport> transport,
                       asio::any_io_executor executor,
                       std::string peer,
                       std::shared_ptr<ServerCore> core)
    : transport_(std::move(transport)),
      executor_(std::move(executor)),
      peer_(std::move(peer)),
      core_(std::move(core)),
      signal_(executor_),
      room_(executor_),
      watchdog_(executor_) {}

void Connection::start(bool overloaded) {
  core_->enter(shared_from_this());
  asio::co_spawn(executor_, run(overloaded), asio::detached);
}

void Connection::drain() {
  asio::post(executor_, [self = shared_from_this()] {
    if (self->exchange_) self->exchange_->close_after();
    if (self->idle_ && self->inbound_.empty()) self->close();
    if (self->discarding_) self->arm_watchdog(kLingerTime);
    self->last_request_by_ = Clock::now() + kLastRequestTime;
    self->notify();
  });
}

void Connection::abort() {
  asio::post(executor_, [self = shared_from_this()] { self->close(); });
}

asio::awaitable<void> Connection::run(bool overloaded) {
  auto self = shared_from_this();
  try {
    co_await serve(overloaded);
  } catch (const std::exception& error) {
    log_error("http connection of {} failed: {}", peer_, type_name(error));
  }
  if (exchange_) exchange_->disconnect();
  exchange_.reset();
  close();
  core_->leave(self);
}

asio::awaitable<void> Connection::serve(bool overloaded) {
  if (!co_await handshake()) co_return;
  asio::co_spawn(executor_, [self = shared_from_this()] { return self->read_loop(); }, asio::detached);
  bool again = true;
  bool whole = true;
  for (bool first = true; again && !closed_; first = false) {
    RequestParser parser({core_->options.max_header_bytes, core_->options.max_body_bytes});
    Outcome outcome = co_await read_request(parser, first);
    if (outcome == Outcome::kRequest && overloaded) {
      refusal_ = {503, "too many connections"};
      outcome = Outcome::kRefused;
    }
    if (outcome != Outcome::kRequest) co_await drop_sink(parser.request());
    if (outcome == Outcome::kRefused) co_await refuse(refusal_);
    if (outcome != Outcome::kRequest) co_return;
    again = co_await respond(parser, std::move(parser.request()));
    whole = parser.done();
  }
  if (!closed_)
    co_await linger(whole ? kLingerTime : kBodyLingerSilence, whole ? kLingerTime : kBodyLingerTime);
}

asio::awaitable<bool> Connection::handshake() {
  arm_watchdog(core_->options.header_timeout);
  ErrorCode error = co_await transport_->handshake();
  watchdog_.cancel();
  if (error) log_debug("TLS handshake with {} failed: {}", peer_, error.message());
  co_return !error;
}

asio::awaitable<void> Connection::read_loop() {
  while (true) {
    co_await wait_for_room();
    if (closed_) co_return;
    IoResult result = co_await transport_->read_some(asio::buffer(read_buffer_));
    if (result.error) break;
    if (!discarding_ && !overrun_) inbound_.append(read_buffer_.data(), result.bytes);
    notify();
  }
  on_read_end();
}

// Whether the buffer has no room for a whole header, which the parser takes in one piece, and for some of
// what follows it.
bool Connection::is_full() const {
  return inbound_.size() >= core_->options.max_header_bytes + read_buffer_.size() && !discarding_ &&
         !overrun_;
}

// An unread client is not seen to go away. So behind an answer that takes its time reading goes on, what
// comes is thrown away, and the connection ends with that answer.
asio::awaitable<void> Connection::wait_for_room() {
  while (is_full() && !closed_) {
    room_.expires_at(is_answering() ? Clock::now() + kUnreadTime : TimePoint::max());
    const auto [cancelled] = co_await room_.async_wait(kResult);
    if (cancelled || !is_answering()) continue;
    overrun_ = true;
    exchange_->close_after();
  }
}

bool Connection::is_answering() const { return exchange_ && !exchange_->ended(); }

void Connection::on_read_end() {
  peer_closed_ = true;
  // A response that is complete may still reach a client that only closed its sending side; a pending one
  // counts as abandoned.
  if (is_answering()) close();
  notify();
}

asio::awaitable<Connection::Outcome> Connection::wait_for_first_byte(bool first) {
  const ServerOptions& options = core_->options;
  const TimePoint deadline = Clock::now() + (first ? options.header_timeout : options.idle_timeout);
  idle_ = true;
  int empty_lines = 0;
  while (!request_begins(empty_lines)) {
    if (peer_closed_ || closed_ || (core_->draining && !first)) co_return Outcome::kGone;
    if (!co_await wait(std::min(deadline, last_request_by_))) co_return Outcome::kGone;
  }
  idle_ = false;
  co_return Outcome::kRequest;
}

// Empty lines are none of it: after them the connection is as idle as before.
bool Connection::request_begins(int& empty_lines) {
  for (; empty_lines < kMaxEmptyLines && inbound_.starts_with("\r\n"); ++empty_lines) inbound_.erase(0, 2);
  const bool half_a_line = inbound_ == "\r" && empty_lines < kMaxEmptyLines;
  return !inbound_.empty() && !half_a_line;
}

asio::awaitable<Connection::Outcome> Connection::read_request(RequestParser& parser, bool first) {
  if (co_await wait_for_first_byte(first) != Outcome::kRequest) co_return Outcome::kGone;
  TimePoint deadline = Clock::now() + core_->options.header_timeout;
  bool in_body = false;
  while (true) {
    feed(parser);
    if (refusal_.status != 0) co_return Outcome::kRefused;
    Request& request = parser.request();
    const bool begins = parser.header_done() && !in_body;
    if (begins) {
      in_body = true;
      if (!admit(request)) co_return Outcome::kRefused;
      deadline = Clock::now() + admission_.body_timeout.value_or(core_->options.body_timeout);
    }
    if (in_body && !check_size(request)) co_return Outcome::kRefused;
    if (request.sink && !request.body.empty() && (parser.done() || request.body.size() >= kPieceBytes)) {
      const bool goes_on = co_await pass_on(request);
      if (!goes_on) co_return Outcome::kRequest;
      if (!begins) continue;  // more may have come meanwhile, also the end
    }
    if (parser.done()) co_return Outcome::kRequest;
    if (begins && !co_await continue_if_expected(parser, request)) co_return Outcome::kRefused;
    if (peer_closed_ || closed_) co_return Outcome::kGone;
    if (!co_await wait(std::min(deadline, last_request_by_))) {
      refusal_ = {408, in_body ? "the request body took too long" : "the request header took too long"};
      co_return Outcome::kRefused;
    }
  }
}

bool Connection::admit(Request& request) {
  admission_ = core_->options.admit ? core_->options.admit(request) : Admission();
  request.sink = std::move(admission_.sink);
  passed_bytes_ = 0;
  if (!admission_.refusal) return true;
  refusal_ = {admission_.refusal->status, ""};
  return false;
}

// By what has come, and by what is said to come.
bool Connection::check_size(const Request& request) {
  const uint64_t limit = std::min(admission_.max_body_bytes, core_->options.max_body_bytes);
  const uint64_t come = passed_bytes_ + request.body.size();
  if (std::max(come, request.content_length().value_or(0)) <= limit) return true;
  refusal_ = {413, "the request body is too large"};
  return false;
}

asio::awaitable<bool> Connection::pass_on(Request& request) {
  bool goes_on = false;
  const std::function<void()> write = [&] { goes_on = request.sink->write(request.body); };
  co_await on_disk_thread(write);
  passed_bytes_ += request.body.size();
  request.body.clear();
  co_return goes_on;
}

asio::awaitable<void> Connection::drop_sink(Request& request) {
  if (!request.sink) co_return;
  const std::function<void()> drop = [&] { request.sink.reset(); };
  co_await on_disk_thread(drop);
}

void Connection::feed(RequestParser& parser) {
  // One call may stop between header and body.
  while (!inbound_.empty() && !parser.done()) {
    size_t taken = parser.feed(inbound_);
    inbound_.erase(0, taken);
    if (taken == 0 || parser.error().status != 0) break;
  }
  refusal_ = parser.error();
  bool stuck = !parser.done() && refusal_.status == 0 && inbound_.size() > core_->options.max_header_bytes;
  if (stuck) refusal_ = {431, "a header line, chunk line or trailer is too large"};
  room_.cancel();
}

// False, with refusal_ set, when the client expects something else than a 100.
asio::awaitable<bool> Connection::continue_if_expected(const RequestParser& parser, const Request& request) {
  const std::string* expected = request.headers.find("Expect");
  if (!expected || parser.http_1_0()) co_return true;
  if (!equals_ignoring_case(*expected, "100-continue")) {
    refusal_ = {417, "the only expectation served is 100-continue"};
    co_return false;
  }
  // A failed write shows up as a closed connection in the caller's loop.
  co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
  co_return true;
}

std::shared_ptr<Exchange> Connection::make_exchange(const RequestParser& parser, const Request& request) {
  ExchangeTraits traits{.head_request = request.method == "HEAD",
                        .http_1_0 = parser.http_1_0(),
                        .keep_alive = parser.done() && parser.keep_alive() && !core_->draining,
                        .max_queue_bytes = core_->options.max_write_queue_bytes,
                        .render_error = core_->options.render_error};
  auto wake = [weak = weak_from_this(), executor = executor_] {
    asio::post(executor, [weak] {
      if (auto self = weak.lock()) self->on_wake();
    });
  };
  return std::make_shared<Exchange>(std::move(traits), std::move(wake));
}

void Connection::call_handler(Request request, const std::shared_ptr<Exchange>& exchange) {
  auto writer = std::make_shared<ResponseWriter>(exchange);
  try {
    core_->handler(std::move(request), std::move(writer));
  } catch (const std::exception& error) {
    // The writer, dropped on the way here, has sent a 500 already if nobody else holds it.
    log_error("an http handler threw {}", type_name(error));
  }
}

// Whether the connection is good for another request.
asio::awaitable<bool> Connection::respond(const RequestParser& parser, Request request) {
  request.peer = peer_;
  exchange_ = make_exchange(parser, request);
  room_.cancel();
  call_handler(std::move(request), exchange_);
  bool whole = co_await pump(*exchange_);
  if (whole) {
    exchange_->detach();
  } else {
    close();
    exchange_->disconnect();
  }
  bool again = whole && exchange_->keep_alive() && !overrun_;
  exchange_.reset();
  co_return again;
}

// Moves the response to the socket until it is out. False: the client is gone or was cut off.
// No switch here: gcc 12 miscompiles a co_await inside one.
asio::awaitable<bool> Connection::pump(Exchange& exchange) {
  while (true) {
    const Exchange::Next next = exchange.next(outbound_);
    if (next == Exchange::Next::kDone) co_return true;
    if (next == Exchange::Next::kAbort) co_return false;
    bool written = true;
    if (next == Exchange::Next::kWait) co_await wait(TimePoint::max());
    if (next == Exchange::Next::kWrite) written = co_await write_all(outbound_);
    if (next == Exchange::Next::kSource) written = co_await send_source(exchange.take_source());
    if (!written) co_return false;
    const bool gone = peer_closed_ && !exchange.ended();
    if (gone || closed_) co_return false;
  }
}

// The next piece is read when the socket has taken the one before: who reads slowly takes no memory.
asio::awaitable<bool> Connection::send_source(std::shared_ptr<BodySource> source) {
  Status status = ok_status();
  const std::function<void()> read = [&] { status = source->read(outbound_); };
  for (uint64_t left = source->bytes(); left > 0; left -= outbound_.size()) {
    outbound_.resize(static_cast<size_t>(std::min<uint64_t>(left, kPieceBytes)));
    co_await on_disk_thread(read);
    if (!status.ok()) {
      log_error("an answer to {} was cut off: {}", peer_, status.message());
      co_return false;
    }
    const bool written = co_await write_all(outbound_);
    if (!written) co_return false;
  }
  co_return true;
}

void Connection::on_wake() {
  if (exchange_ && exchange_->must_abort()) close();
  notify();
}

asio::awaitable<void> Connection::refuse(const ParseError& error) {
  Exchange exchange({.keep_alive = false, .render_error = core_->options.render_error}, nullptr);
  Response response =
      admission_.refusal ? *admission_.refusal : core_->options.render_error(error.status, error.message);
  if (error.status == 503) response.headers.set("Retry-After", "1");
  (void)exchange.send(response);
  if (!co_await pump(exchange)) co_return;
  const bool body_follows = (error.status == 413 || admission_.refusal) && !core_->draining;
  co_await linger(body_follows ? kBodyLingerSilence : kLingerTime,
                  body_follows ? kBodyLingerTime : kLingerTime);
}

// Closing with unread input resets the connection, and a reset may overtake the response. So: say that
// nothing follows, and throw away what still comes for a while.
asio::awaitable<void> Connection::linger(Duration silence, Duration all) {
  discarding_ = true;
  inbound_.clear();
  room_.cancel();
  arm_watchdog(all);
  co_await transport_->finish_writing();
  const TimePoint end = Clock::now() + all;
  while (!peer_closed_ && !closed_)
    if (!co_await wait(std::min(end, Clock::now() + silence))) break;
}

asio::awaitable<bool> Connection::write_all(std::string_view bytes) {
  while (!bytes.empty() && !closed_) {
    arm_watchdog(core_->options.write_timeout);
    IoResult result = co_await transport_->write_some(asio::buffer(bytes.data(), bytes.size()));
    watchdog_.cancel();
    if (result.error) {
      close();
      co_return false;
    }
    bytes.remove_prefix(result.bytes);
  }
  co_return bytes.empty();
}

asio::awaitable<bool> Connection::wait(TimePoint deadline) {
  // Also when bytes keep coming: a client that drips is late all the same.
  if (deadline != TimePoint::max() && Clock::now() >= deadline) co_return false;
  if (!signalled_) {
    signal_.expires_at(deadline);
    co_await signal_.async_wait(kResult);
  }
  co_return std::exchange(signalled_, false);
}

asio::awaitable<void> Connection::on_disk_thread(const std::function<void()>& work) {
  bool done = false;
  asio::post(core_->disk_threads(), [this, &work, &done, executor = executor_] {
    work();
    asio::post(executor, [this, &done] {
      done = true;
      notify();
    });
  });
  while (!done) co_await wait(TimePoint::max());
}

void Connection::notify() {
  signalled_ = true;
  signal_.cancel();
}

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  watchdog_.cancel();
  transport_->close();
  room_.cancel();
  notify();
}

void Connection::arm_watchdog(Duration after) {
  watchdog_.expires_after(after);
  watchdog_.async_wait([weak = weak_from_this()](ErrorCode error) {
    if (error) return;
    if (auto self = weak.lock()) self->close();
  });
}

}  // namespace llm_dist::http
