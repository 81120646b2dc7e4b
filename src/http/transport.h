// A connected byte stream, TCP or Unix socket, plain or TLS, behind one interface, so that the coroutines of
// server and client are compiled once. Internal to this folder.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>

namespace boost::asio::ssl {
class context;
}

namespace llm_dist::http {

namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using StreamSocket = asio::generic::stream_protocol::socket;

struct IoResult {
  ErrorCode error;
  size_t bytes = 0;
};

// At most one read and one write at a time; all calls on the socket's I/O thread.
class Transport {
 public:
  virtual ~Transport() = default;
  // Before the first read or write. Nothing to do on a plain stream.
  virtual asio::awaitable<ErrorCode> handshake() = 0;
  virtual asio::awaitable<IoResult> read_some(asio::mutable_buffer buffer) = 0;
  virtual asio::awaitable<IoResult> write_some(asio::const_buffer buffer) = 0;
  // Says "no more from here", while reads go on.
  virtual asio::awaitable<void> finish_writing() = 0;
  // Pending reads and writes end with an error.
  virtual void close() = 0;
};

std::unique_ptr<Transport> make_plain_transport(StreamSocket socket);

std::unique_ptr<Transport> make_tls_server_transport(StreamSocket socket, asio::ssl::context& context);
// Where the context verifies, the certificate must name `host`, unless `checks_host` is false.
std::unique_ptr<Transport> make_tls_client_transport(StreamSocket socket,
                                                     asio::ssl::context& context,
                                                     const std::string& host,
                                                     bool checks_host);

// "127.0.0.1:80", "[::1]:80" or "unix".
std::string peer_name(const StreamSocket& socket);

// No delay, and keep-alive probes that notice a vanished host within a minute. Errors do not matter: Unix
// sockets know neither.
void tune_socket(StreamSocket& socket);

}  // namespace llm_dist::http
