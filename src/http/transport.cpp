#include "src/http/transport.h"

#include <netinet/tcp.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>

#include "src/base/format.h"

namespace llm_dist::http {
namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);

class PlainTransport : public Transport {
 public:
  explicit PlainTransport(StreamSocket socket) : socket_(std::move(socket)) {}

  asio::awaitable<ErrorCode> handshake() override { co_return ErrorCode(); }

  asio::awaitable<IoResult> read_some(asio::mutable_buffer buffer) override {
    auto [error, bytes] = co_await socket_.async_read_some(buffer, kResult);
    co_return IoResult{error, bytes};
  }
  asio::awaitable<IoResult> write_some(asio::const_buffer buffer) override {
    auto [error, bytes] = co_await socket_.async_write_some(buffer, kResult);
    co_return IoResult{error, bytes};
  }
  asio::awaitable<void> finish_writing() override {
    ErrorCode ignored;
    socket_.shutdown(StreamSocket::shutdown_send, ignored);
    co_return;
  }
  void close() override {
    ErrorCode ignored;
    socket_.close(ignored);
  }

 private:
  StreamSocket socket_;
};

class TlsTransport : public Transport {
 public:
  TlsTransport(StreamSocket socket, asio::ssl::context& context, asio::ssl::stream_base::handshake_type side)
      : stream_(std::move(socket), context), side_(side) {}

  asio::awaitable<ErrorCode> handshake() override {
    auto [error] = co_await stream_.async_handshake(side_, kResult);
    co_return error;
  }

  asio::awaitable<IoResult> read_some(asio::mutable_buffer buffer) override {
    auto [error, bytes] = co_await stream_.async_read_some(buffer, kResult);
    co_return IoResult{error, bytes};
  }
  asio::awaitable<IoResult> write_some(asio::const_buffer buffer) override {
    auto [error, bytes] = co_await stream_.async_write_some(buffer, kResult);
    co_return IoResult{error, bytes};
  }
  // Sends close_notify and waits for the peer's.
  asio::awaitable<void> finish_writing() override { co_await stream_.async_shutdown(kResult); }
  void close() override {
    ErrorCode ignored;
    stream_.lowest_layer().close(ignored);
  }

  void ask_for_host(const std::string& host, bool checks_it) {
    if (checks_it) stream_.set_verify_callback(asio::ssl::host_name_verification(host));
    // An address is no server name (RFC 6066, 3).
    ErrorCode not_an_address;
    asio::ip::make_address(host, not_an_address);
    if (not_an_address) SSL_set_tlsext_host_name(stream_.native_handle(), host.c_str());
  }

 private:
  asio::ssl::stream<StreamSocket> stream_;
  asio::ssl::stream_base::handshake_type side_;
};

template <typename Endpoint>
Endpoint specific_endpoint(const StreamSocket::endpoint_type& generic) {
  Endpoint endpoint;
  endpoint.resize(generic.size());
  std::memcpy(endpoint.data(), generic.data(), generic.size());
  return endpoint;
}

}  // namespace

std::unique_ptr<Transport> make_plain_transport(StreamSocket socket) {
  return std::make_unique<PlainTransport>(std::move(socket));
}

std::unique_ptr<Transport> make_tls_server_transport(StreamSocket socket, asio::ssl::context& context) {
  return std::make_unique<TlsTransport>(std::move(socket), context, asio::ssl::stream_base::server);
}

std::unique_ptr<Transport> make_tls_client_transport(StreamSocket socket,
                                                     asio::ssl::context& context,
                                                     const std::string& host,
                                                     bool checks_host) {
  auto transport = std::make_unique<TlsTransport>(std::move(socket), context, asio::ssl::stream_base::client);
  transport->ask_for_host(host, checks_host);
  return transport;
}

std::string peer_name(const StreamSocket& socket) {
  ErrorCode error;
  auto generic = socket.remote_endpoint(error);
  int family = generic.protocol().family();
  if (error || (family != AF_INET && family != AF_INET6)) return "unix";
  auto endpoint = specific_endpoint<asio::ip::tcp::endpoint>(generic);
  std::string address = endpoint.address().to_string();
  return format(family == AF_INET6 ? "[{}]:{}" : "{}:{}", address, endpoint.port());
}

void tune_socket(StreamSocket& socket) {
  auto set = [&](int level, int name, int value) {
    (void)::setsockopt(socket.native_handle(), level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace llm_dist::http
