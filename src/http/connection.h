// One client's connection to the server: reads requests one at a time, writes their responses. Internal to
// this folder.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>

#include "src/http/exchange.h"
#include "src/http/message_parser.h"
#include "src/http/server.h"
#include "src/http/transport.h"

namespace llm_dist::http {

class Connection;

// What all connections of a server share.
struct ServerCore {
  ServerOptions options;
  Handler handler;
  std::atomic<bool> draining = false;

  void enter(std::shared_ptr<Connection> connection);
  void leave(const std::shared_ptr<Connection>& connection);
  size_t num_connections() const;
  std::vector<std::shared_ptr<Connection>> connections() const;
  // False if some are still open at the deadline.
  bool wait_until_empty(Deadline deadline);

 private:
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::unordered_set<std::shared_ptr<Connection>> open_;
};

// Runs on the one thread of its executor: two coroutines, one that only reads (so that a client that goes
// away is noticed at any time) and one that parses, calls the handler and writes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::unique_ptr<Transport> transport,
             asio::any_io_executor executor,
             std::string peer,
             std::shared_ptr<ServerCore> core);

  // overloaded: answer the first request with 503 without calling the handler.
  void start(bool overloaded);
  // From any thread: closes once no response is open; at once when idle.
  void drain();
  // From any thread: closes now.
  void abort();

 private:
  enum class Outcome { kRequest, kRefused, kGone };

  asio::awaitable<void> run(bool overloaded);
  asio::awaitable<void> serve(bool overloaded);
  asio::awaitable<bool> handshake();
  asio::awaitable<void> read_loop();
  asio::awaitable<Outcome> read_request(RequestParser& parser, bool first);
  asio::awaitable<Outcome> wait_for_first_byte(bool first);
  asio::awaitable<bool> continue_if_expected(const RequestParser& parser, const Request& request);
  size_t body_limit_of(const Request& request) const;
  asio::awaitable<bool> respond(const RequestParser& parser, Request request);
  asio::awaitable<bool> pump(Exchange& exchange);
  asio::awaitable<void> refuse(const ParseError& error);
  asio::awaitable<bool> write_all(std::string_view bytes);
  // Until the client closes, is silent for so long or has been given all of the time.
  asio::awaitable<void> linger(Duration silence, Duration all);
  // False when the deadline passed before notify().
  asio::awaitable<bool> wait(TimePoint deadline);

  std::shared_ptr<Exchange> make_exchange(const RequestParser& parser, const Request& request);
  void call_handler(Request request, const std::shared_ptr<Exchange>& exchange);
  void feed(RequestParser& parser);
  void on_wake();
  void on_read_end();
  void notify();
  void close();
  void arm_watchdog(Duration after);

  std::unique_ptr<Transport> transport_;
  asio::any_io_executor executor_;
  std::string peer_;
  std::shared_ptr<ServerCore> core_;

  asio::steady_timer signal_;    // what the serving coroutine sleeps on
  asio::steady_timer room_;      // what the reading coroutine sleeps on while inbound_ is full
  asio::steady_timer watchdog_;  // closes the socket when a handshake, write or close makes no progress
  std::array<char, 16 << 10> read_buffer_;
  std::string inbound_;   // read, not parsed yet
  std::string outbound_;  // being written
  ParseError refusal_;
  std::shared_ptr<Exchange> exchange_;  // of the response in flight
  bool signalled_ = false;
  bool idle_ = true;         // between requests
  bool discarding_ = false;  // closing: what still comes in is thrown away
  bool peer_closed_ = false;
  bool closed_ = false;
};

}  // namespace llm_dist::http
