// The HTTP/1.1 server: owns its I/O threads, hands every request to one handler. TCP or a Unix socket, plain
// or TLS, with limits on everything a client can make grow.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/http/message.h"
#include "src/http/response_writer.h"

namespace llm_dist::http {

// Runs on an I/O thread, so it must not block: hand long work to another thread together with the writer.
using Handler = std::function<void(Request, std::shared_ptr<ResponseWriter>)>;

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;     // 0: any free one, see Server::port()
  std::string uds_path;  // when set, this Unix socket (mode 0600) instead of host and port

  // PEM files; both or none.
  std::string tls_cert_file;
  std::string tls_key_file;

  int num_io_threads = 1;
  size_t max_connections = 4096;                       // beyond: 503 and close
  size_t max_header_bytes = 32 << 10;                  // beyond: 431
  uint64_t max_body_bytes = 32 << 20;                  // beyond: 413
  size_t max_write_queue_bytes = 4 << 20;              // see ResponseWriter::write()
  Duration header_timeout = std::chrono::seconds(10);  // whole header, and the TLS handshake; then 408
  Duration body_timeout = std::chrono::seconds(60);    // whole body; then 408
  Duration idle_timeout = std::chrono::seconds(75);    // between requests of a kept connection
  Duration write_timeout = std::chrono::seconds(30);   // a socket write without any progress

  // Asked on an I/O thread once a request's header is whole, and before a client that waits for it is told to
  // send the body.
  std::function<Admission(const Request& head)> admit{};

  // For what the server answers by itself (400, 408, 413, 431, 500, 501, 503).
  ErrorRenderer render_error = plain_error;
};

class Server {
 public:
  // Listens when it returns. failed_precondition: the address is taken or cannot be bound; invalid_argument:
  // unusable options or TLS files.
  static Result<std::unique_ptr<Server>> create(ServerOptions options, Handler handler);
  // Cuts off whatever is still open.
  ~Server();

  uint16_t port() const;    // 0 on a Unix socket
  std::string url() const;  // "http://127.0.0.1:8000", "http+unix://%2Ftmp%2Fs"
  // For programs of this machine: an address, and no name that would have to be resolved.
  std::string local_url() const;
  // url(), or local_url() where it has the name of this machine and that does not resolve, as in some
  // containers. May ask the network.
  std::string resolvable_url() const;
  // The one that it shows, as PEM; empty without TLS.
  std::string certificate() const;

  // Closes the listening socket; open connections go on. Not from an I/O thread, nor is shutdown().
  void stop_accepting();
  // Drains: closes idle connections, waits for open responses, then ends the I/O threads. deadline_exceeded:
  // the rest was cut off.
  Status shutdown(Deadline deadline);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace llm_dist::http
