// A small blocking HTTP/1.1 client: whole responses, or the body as it comes. For load generators, tests and
// control messages, not for browsing: no redirects, cookies or compression.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "src/base/clock.h"
#include "src/base/status.h"
#include "src/http/message.h"
#include "src/http/sse.h"

namespace llm_dist::http {

struct ClientRequest {
  std::string method = "GET";
  // "http://host:port/path?query", "https://…", or "http+unix://%2Fpath%2Fto%2Fsocket/path".
  std::string url = {};
  Headers headers = {};  // Host, Content-Length and Connection are added
  std::string body = {};
};

struct ClientOptions {
  // https: a PEM file of authorities, or servers, to trust instead of the system's certificates.
  std::string tls_ca_file = {};
  // https: a PEM file with the server's own certificate, instead: it alone is trusted, whatever name it has.
  std::string tls_pinned_file = {};
  size_t max_header_bytes = 64 << 10;
  uint64_t max_body_bytes = uint64_t{1} << 30;
};

// Gets the body piece by piece; returns false to stop, which closes the connection.
using OnData = std::function<bool(std::string_view)>;

// Keeps its connection for the next request to the same server. Not thread-safe, but for abort(): one client
// a thread. Errors: cancelled (abort()), invalid_argument (URL), unavailable (refused, reset, closed early),
// failed_precondition (the server's certificate is not trusted), resource_exhausted (this process has no
// descriptor or memory left to ask with: nothing is known of the server), deadline_exceeded, internal (not
// HTTP). A response with an error status is a Response, not an error.
class Client {
 public:
  explicit Client(ClientOptions options = {});
  ~Client();
  Client(Client&&) noexcept;
  Client& operator=(Client&&) noexcept;

  Result<Response> request(const ClientRequest& request, Deadline deadline);
  // A 2xx body goes to on_data, and the returned response has none; any other body is in the response.
  Result<Response> stream(const ClientRequest& request, Deadline deadline, const OnData& on_data);
  // stream() through an SseParser.
  Result<Response> stream_events(const ClientRequest& request,
                                 Deadline deadline,
                                 const SseParser::OnEvent& on_event);

  // From any thread: what is under way ends at once, and so does every later request.
  void abort();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// One request on a connection of its own.
Result<Response> request(const ClientRequest& request, Deadline deadline, ClientOptions options = {});

}  // namespace llm_dist::http
