// A bare socket, to send what no well-behaved client sends; and short names for what the tests repeat.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "src/http/client.h"
#include "src/http/server.h"

namespace llm_dist::http {

class RawClient {
 public:
  RawClient();  // to connect() later
  // receive_buffer_bytes: how little the kernel takes for a client that does not read; 0 leaves its default.
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void connect(uint16_t port);
  // False when the server has closed.
  bool send(std::string_view bytes);
  // Reads until the text holds `mark`, the server closes or a minute passes; returns all that came since the
  // last call.
  std::string read_until(std::string_view mark);
  std::string read_to_end() { return read_until(std::string_view()); }
  bool closed() const { return closed_; }
  // Whether something came that was not read, an end included.
  bool readable() const;
  void shutdown_write();
  void reset();  // closes with RST

 private:
  void close();
  int fd_ = -1;
  bool closed_ = false;
};

// Longer than any machine is busy with something else.
inline Deadline soon() { return Deadline::after_seconds(60); }

// A server on a free port of 127.0.0.1.
inline std::unique_ptr<Server> start(Handler handler, ServerOptions options = {}) {
  auto server = Server::create(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << server.status().to_string();
  return std::move(server).value();
}

inline ClientRequest get(const Server& server, const std::string& path) {
  return {.url = server.url() + path};
}

// Polls until soon().
template <typename Condition>
bool eventually(Condition condition) {
  Deadline deadline = soon();
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline Response text(std::string body, int status = 200) {
  return {.status = status, .content_type = "text/plain", .body = std::move(body)};
}

}  // namespace llm_dist::http
