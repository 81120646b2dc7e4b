#include "src/http/client_connection.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>

#include "src/base/format.h"

namespace llm_dist::http {
namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);
using Endpoint = asio::generic::stream_protocol::endpoint;

std::string request_head(const ClientRequest& request, const Url& url) {
  std::string head = format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, url.target, url.authority);
  for (const auto& [name, value] : request.headers) head += format("{}: {}\r\n", name, value);
  bool has_body = !request.body.empty() || request.method == "POST" || request.method == "PUT";
  if (has_body) head += format("Content-Length: {}\r\n", request.body.size());
  return head + "\r\n";
}

// Trying again does not help then.
bool is_distrust(const ErrorCode& error) {
  return error.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_CERTIFICATE_VERIFY_FAILED;
}

// What this process lacks, whatever the server is like.
bool is_own_lack(const ErrorCode& error) {
  return error == asio::error::no_descriptors || error == asio::error::no_memory ||
         error == asio::error::no_buffer_space ||
         error == boost::system::errc::too_many_files_open_in_system ||
         error == boost::system::errc::address_not_available;  // every port is taken
}

Status not_reached(const ErrorCode& error, const std::string& what) {
  std::string message = format("{}: {}", what, error.message());
  return is_own_lack(error) ? resource_exhausted(message) : unavailable(message);
}

// The first certificate of a file: who has signed it may have signed others too.
Status trust_only(const std::string& file, X509_STORE* trusted) {
  std::unique_ptr<BIO, int (*)(BIO*)> pem(BIO_new_file(file.c_str(), "r"), BIO_free);
  std::unique_ptr<X509, void (*)(X509*)> certificate(
      pem ? PEM_read_bio_X509(pem.get(), nullptr, nullptr, nullptr) : nullptr, X509_free);
  if (certificate && X509_STORE_add_cert(trusted, certificate.get()) == 1) return ok_status();
  return invalid_argument(format("cannot load the certificate to trust from {}", file));
}

// A field name or value with a line break would become fields of its own.
Status check_fields(const ClientRequest& request) {
  auto broken = [](std::string_view text) {
    return text.find_first_of(std::string_view("\r\n\0", 3)) != text.npos;
  };
  if (broken(request.method) || broken(request.url) || request.method.empty())
    return invalid_argument("an HTTP method or URL holds a line break");
  for (const auto& [name, value] : request.headers)
    if (broken(name) || broken(value))
      return invalid_argument(format("the header {} holds a line break", name));
  return ok_status();
}

}  // namespace

Result<Url> check_request(const ClientRequest& request) {
  RETURN_IF_ERROR(check_fields(request));
  return parse_url(request.url);
}

ClientSetup::ClientSetup(ClientOptions options) : options_(std::move(options)) {}
ClientSetup::~ClientSetup() = default;

// asio throws where it cannot have them, which is no place for who only asks: so they are looked for first.
Status ClientSetup::ensure_event_queue(asio::io_context& context) {
  if (has_event_queue_) return ok_status();
  constexpr size_t kItTakes = 3;  // epoll, its timer and what interrupts it
  std::array<int, kItTakes> descriptors{};
  for (int& descriptor : descriptors) descriptor = ::eventfd(0, EFD_CLOEXEC);
  const int error = errno;
  const bool enough = descriptors.back() >= 0;
  for (int descriptor : descriptors)
    if (descriptor >= 0) ::close(descriptor);
  if (!enough) return resource_exhausted(format("cannot wait for an answer: {}", std::strerror(error)));
  try {
    asio::steady_timer first(context);
  } catch (const boost::system::system_error& taken) {  // by somebody else, in between
    return resource_exhausted(format("cannot wait for an answer: {}", taken.code().message()));
  }
  has_event_queue_ = true;
  return ok_status();
}

Status ClientSetup::ensure_tls() {
  if (tls_) return ok_status();
  auto context = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_client);
  context->set_verify_mode(asio::ssl::verify_peer);
  // A server's own certificate is trusted as it is, whoever has signed it.
  X509_STORE* trusted = SSL_CTX_get_cert_store(context->native_handle());
  ErrorCode error;
  if (!options_.tls_pinned_file.empty()) {
    RETURN_IF_ERROR(trust_only(options_.tls_pinned_file, trusted));
    X509_STORE_set_flags(trusted, X509_V_FLAG_PARTIAL_CHAIN);
  } else if (options_.tls_ca_file.empty()) {
    context->set_default_verify_paths(error);
  } else {
    context->load_verify_file(options_.tls_ca_file, error);
    X509_STORE_set_flags(trusted, X509_V_FLAG_PARTIAL_CHAIN);
  }
  if (error) return invalid_argument(format("cannot load the certificates to trust: {}", error.message()));
  tls_ = std::move(context);
  return ok_status();
}

ClientConnection::ClientConnection(asio::io_context& context, const ClientSetup& setup)
    : context_(context), setup_(setup), resolver_(context) {}

asio::awaitable<Result<Response>> ClientConnection::exchange(const ClientRequest& request,
                                                             const Url& url,
                                                             const OnData* on_data) {
  cancelled_ = false;
  if (connected_to_ != url.origin()) disconnect();
  const bool reused = transport_ != nullptr;
  Call call{.request = request, .url = url, .on_data = on_data, .body = {}};
  Result<Response> outcome = co_await attempt(call);
  if (!outcome.ok()) disconnect();
  // A server may close a kept connection just as it is used again; nothing was answered then, so try once
  // more.
  bool stale = reused && outcome.status().code() == StatusCode::kUnavailable && !call.got_bytes;
  if (!stale || cancelled_) co_return outcome;
  outcome = co_await attempt(call);
  if (!outcome.ok()) disconnect();
  co_return outcome;
}

asio::awaitable<Result<Response>> ClientConnection::attempt(Call& call) {
  if (!transport_) {
    Status connected = co_await connect(call.url);
    if (!connected.ok()) co_return connected;
  }
  std::string bytes = request_head(call.request, call.url) + call.request.body;
  Status written = co_await write_all(bytes);
  // A server that refuses a large body answers before it has read it all, so read in any case.
  Result<Response> response = co_await read_response(call);
  if (!response.ok() && !written.ok()) co_return written;
  co_return response;
}

asio::awaitable<Result<Response>> ClientConnection::read_response(Call& call) {
  const bool head_request = call.request.method == "HEAD";
  const ClientOptions& options = setup_.options();
  while (true) {
    ResponseParser parser({options.max_header_bytes, options.max_body_bytes},
                          head_request,
                          [this, &call](std::string_view piece) { return take_body(call, piece); });
    call.parser = &parser;
    Status read = co_await read_into(parser, call);
    if (!read.ok()) co_return read;
    // 100 Continue and its like announce the real response.
    if (parser.response().status >= 200) co_return finish(call);
  }
}

asio::awaitable<Status> ClientConnection::read_into(ResponseParser& parser, Call& call) {
  while (true) {
    inbound_.erase(0, parser.feed(inbound_));
    if (parser.stopped() || parser.done()) co_return ok_status();
    if (parser.error().status != 0) co_return internal_error(parser.error().message);
    IoResult result = co_await transport_->read_some(asio::buffer(buffer_));
    if (result.error) {
      parser.feed_eof();
      if (parser.done()) co_return ok_status();
      co_return unavailable(
          format("{} closed the connection: {}", call.url.authority, result.error.message()));
    }
    call.got_bytes = true;
    inbound_.append(buffer_.data(), result.bytes);
  }
}

bool ClientConnection::take_body(Call& call, std::string_view piece) {
  int status = call.parser->response().status;
  if (call.on_data && status >= 200 && status < 300) return (*call.on_data)(piece);
  call.body += piece;
  return true;
}

Response ClientConnection::finish(Call& call) {
  Response response = std::move(call.parser->response());
  response.body = std::move(call.body);
  if (!call.parser->keep_alive() || !inbound_.empty()) disconnect();
  return response;
}

asio::awaitable<Result<std::vector<Endpoint>>> ClientConnection::resolve(const Url& url) {
  std::vector<Endpoint> endpoints;
  if (!url.uds_path.empty()) {
    if (url.uds_path.size() >= sizeof(sockaddr_un::sun_path))
      co_return invalid_argument(format("the Unix socket path {} is too long", url.uds_path));
    endpoints.emplace_back(asio::local::stream_protocol::endpoint(url.uds_path));
    co_return endpoints;
  }
  ErrorCode not_an_address;
  auto address = asio::ip::make_address(url.host, not_an_address);
  if (!not_an_address) {
    endpoints.emplace_back(asio::ip::tcp::endpoint(address, url.port));
    co_return endpoints;
  }
  auto [error, found] = co_await resolver_.async_resolve(url.host, std::to_string(url.port), kResult);
  if (error) co_return not_reached(error, format("cannot resolve {}", url.host));
  for (const auto& entry : found) endpoints.emplace_back(entry.endpoint());
  co_return endpoints;
}

asio::awaitable<Status> ClientConnection::connect(const Url& url) {
  Result<std::vector<Endpoint>> endpoints = co_await resolve(url);
  if (!endpoints.ok()) co_return endpoints.status();
  ErrorCode error = asio::error::not_found;
  for (const Endpoint& endpoint : *endpoints) {
    // What cancel() finds may have just failed by itself: the next one is not to be tried either.
    if (cancelled_) break;
    connecting_.emplace(context_);
    auto [failed] = co_await connecting_->async_connect(endpoint, kResult);
    error = failed;
    if (!error) break;
  }
  if (cancelled_) error = asio::error::operation_aborted;
  const std::string& where = url.uds_path.empty() ? url.authority : url.uds_path;
  if (error) co_return not_reached(error, format("cannot connect to {}", where));
  tune_socket(*connecting_);
  transport_ = url.tls ? make_tls_client_transport(
                             std::move(*connecting_), setup_.tls(), url.host, setup_.checks_host())
                       : make_plain_transport(std::move(*connecting_));
  connecting_.reset();
  connected_to_ = url.origin();
  error = co_await transport_->handshake();
  if (is_distrust(error))
    co_return failed_precondition(
        format("the certificate of {} is not trusted, or names another host: {}", where, error.message()));
  if (error) co_return unavailable(format("TLS handshake with {} failed: {}", where, error.message()));
  co_return ok_status();
}

asio::awaitable<Status> ClientConnection::write_all(std::string_view bytes) {
  while (!bytes.empty()) {
    IoResult result = co_await transport_->write_some(asio::buffer(bytes.data(), bytes.size()));
    if (result.error) co_return unavailable(format("cannot send the request: {}", result.error.message()));
    bytes.remove_prefix(result.bytes);
  }
  co_return ok_status();
}

void ClientConnection::cancel() {
  cancelled_ = true;
  close();
}

void ClientConnection::close() {
  ErrorCode ignored;
  resolver_.cancel();
  if (connecting_) connecting_->close(ignored);
  if (transport_) transport_->close();
}

void ClientConnection::disconnect() {
  close();
  connecting_.reset();
  transport_.reset();
  connected_to_.clear();
  inbound_.clear();
}

}  // namespace llm_dist::http
