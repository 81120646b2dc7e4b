// One connection of a client, as coroutines: connect, send, read, keep for the next request. Internal to this
// folder; Client and AsyncClient drive it.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/http/client.h"
#include "src/http/message_parser.h"
#include "src/http/transport.h"
#include "src/http/url.h"

namespace llm_dist::http {

// What a client's connections share: its options, and the certificates that it trusts.
class ClientSetup {
 public:
  explicit ClientSetup(ClientOptions options);
  ~ClientSetup();
  const ClientOptions& options() const { return options_; }
  // Before the first connection of an https URL.
  Status ensure_tls();
  // A certificate that is pinned is known by itself.
  bool checks_host() const { return options_.tls_pinned_file.empty(); }
  // Before anything waits in the client's context: what does so first makes its event queue, which takes
  // descriptors. resource_exhausted: there are none.
  Status ensure_event_queue(asio::io_context& context);
  asio::ssl::context& tls() const { return *tls_; }

 private:
  ClientOptions options_;
  std::unique_ptr<asio::ssl::context> tls_;
  bool has_event_queue_ = false;
};

// invalid_argument: a header, a method or a URL that would become lines of their own; an unusable URL.
Result<Url> check_request(const ClientRequest& request);

class ClientConnection {
 public:
  // Both outlive it.
  ClientConnection(asio::io_context& context, const ClientSetup& setup);

  // Connects unless the last exchange left a connection to the same server. `request`, `url` and `on_data`
  // (may be null) live until it ends; what on_data throws comes out.
  asio::awaitable<Result<Response>> exchange(const ClientRequest& request,
                                             const Url& url,
                                             const OnData* on_data);
  // The exchange in progress ends with an error soon.
  void cancel();
  void disconnect();
  // Url::origin() of the server that it is connected to, or empty.
  const std::string& connected_to() const { return connected_to_; }

 private:
  struct Call {
    const ClientRequest& request;
    const Url& url;
    const OnData* on_data;
    ResponseParser* parser = nullptr;
    std::string body;
    bool got_bytes = false;
  };

  asio::awaitable<Result<Response>> attempt(Call& call);
  asio::awaitable<Status> connect(const Url& url);
  asio::awaitable<Result<std::vector<asio::generic::stream_protocol::endpoint>>> resolve(const Url& url);
  asio::awaitable<Status> write_all(std::string_view bytes);
  asio::awaitable<Result<Response>> read_response(Call& call);
  asio::awaitable<Status> read_into(ResponseParser& parser, Call& call);
  bool take_body(Call& call, std::string_view piece);
  Response finish(Call& call);
  void close();

  asio::io_context& context_;
  const ClientSetup& setup_;
  asio::ip::tcp::resolver resolver_;
  std::optional<StreamSocket> connecting_;
  std::unique_ptr<Transport> transport_;
  std::string connected_to_;
  std::string inbound_;
  bool cancelled_ = false;
  std::array<char, 16 << 10> buffer_;
};

}  // namespace llm_dist::http
