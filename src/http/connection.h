// One client's connection to the server: reads requests one at a time, writes their responses. Internal to
// this folder.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
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

  // For what may wait for a disk. They are started when they are first asked for.
  asio::thread_pool& disk_threads();
  // Once no connection is open.
  void stop_disk_threads();

 private:
  mutable std::mutex mutex_;
  std::condition_variable left_;
  std::unordered_set<std::shared_ptr<Connection>> open_;
  std::optional<asio::thread_pool> disk_threads_;  // under mutex_
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
  // From any thread: closes once no response is open; at once when idle. A request that is being sent has a
  // moment to come.
  void drain();
  // From any thread: closes now.
  void abort();

 private:
  enum class Outcome { kRequest, kRefused, kGone };

  asio::awaitable<void> run(bool overloaded);
  asio::awaitable<void> serve(bool overloaded);
  asio::awaitable<bool> handshake();
  asio::awaitable<void> read_loop();
  asio::awaitable<void> wait_for_room();
  bool is_full() const;
  bool is_answering() const;  // the end of an answer is still to come
  asio::awaitable<Outcome> read_request(RequestParser& parser, bool first);
  asio::awaitable<Outcome> wait_for_first_byte(bool first);
  bool request_begins(int& empty_lines);
  asio::awaitable<bool> continue_if_expected(const RequestParser& parser, const Request& request);
  // False, with refusal_ set, when the body is not to be taken.
  bool admit(Request& request);
  bool check_size(const Request& request);
  // Gives the sink what has come, once that is a piece or the end. False: it wants no more.
  asio::awaitable<bool> pass_on(Request& request);
  asio::awaitable<void> drop_sink(Request& request);
  asio::awaitable<bool> respond(const RequestParser& parser, Request request);
  asio::awaitable<bool> pump(Exchange& exchange);
  // False: the source failed, or the client is gone.
  asio::awaitable<bool> send_source(std::shared_ptr<BodySource> source);
  asio::awaitable<void> refuse(const ParseError& error);
  asio::awaitable<bool> write_all(std::string_view bytes);
  // Until the client closes, is silent for so long or has been given all of the time.
  asio::awaitable<void> linger(Duration silence, Duration all);
  // False when the deadline passed before notify().
  asio::awaitable<bool> wait(TimePoint deadline);
  // Done when it returns; the I/O thread serves the others meanwhile.
  asio::awaitable<void> on_disk_thread(const std::function<void()>& work);

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
  Admission admission_;                 // of the request that is being read
  uint64_t passed_bytes_ = 0;           // of it, to its sink
  std::shared_ptr<Exchange> exchange_;  // of the response in flight
  TimePoint last_request_by_ = TimePoint::max();
  bool signalled_ = false;
  bool idle_ = true;         // between requests
  bool overrun_ = false;     // more came behind a request than is kept: the rest is thrown away
  bool discarding_ = false;  // closing: what still comes in is thrown away
  bool peer_closed_ = false;
  bool closed_ = false;
};

}  // namespace llm_dist::http
