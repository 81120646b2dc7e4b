#include "src/http/listener.h"

#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <cerrno>
#include <cstring>

#include "src/base/format.h"

namespace llm_dist::http {
namespace {

using Endpoint = asio::generic::stream_protocol::endpoint;

Status bind_failed(const ServerOptions& options, const ErrorCode& error) {
  if (!options.uds_path.empty())
    return failed_precondition(format("cannot listen on {}: {}", options.uds_path, error.message()));
  if (error == asio::error::address_in_use)
    return failed_precondition(format(
        "port {} on {} is already in use: end the process that holds it (`ss -ltnp 'sport = :{}'` names "
        "it) or choose another with --port (0 takes any free one)",
        options.port,
        options.host,
        options.port));
  if (error == asio::error::access_denied)
    return failed_precondition(format(
        "no permission to listen on port {} of {}: ports below 1024 need privileges, choose another with "
        "--port",
        options.port,
        options.host));
  return failed_precondition(
      format("cannot listen on {}:{}: {}", options.host, options.port, error.message()));
}

Result<Endpoint> tcp_endpoint(asio::io_context& context, const ServerOptions& options) {
  ErrorCode error;
  auto address = asio::ip::make_address(options.host, error);
  if (!error) return Endpoint(asio::ip::tcp::endpoint(address, options.port));
  asio::ip::tcp::resolver resolver(context);
  auto found = resolver.resolve(options.host, "", error);
  if (error || found.empty())
    return invalid_argument(format("cannot resolve the host {}: {}", options.host, error.message()));
  return Endpoint(asio::ip::tcp::endpoint(found.begin()->endpoint().address(), options.port));
}

// A socket file stays behind when its server was killed; nobody answers there, so it may go.
Status remove_stale_socket(asio::io_context& context, const std::string& path) {
  struct stat info{};
  if (::lstat(path.c_str(), &info) != 0) return ok_status();
  if (!S_ISSOCK(info.st_mode)) return failed_precondition(format("{} exists and is not a socket", path));
  ErrorCode error;
  asio::local::stream_protocol::socket probe(context);
  probe.connect(path, error);
  if (!error)
    return failed_precondition(format("another server listens on {}: end it or choose another --uds", path));
  if (::unlink(path.c_str()) != 0)
    return failed_precondition(format("cannot remove the stale socket {}: {}", path, std::strerror(errno)));
  return ok_status();
}

Result<Endpoint> local_endpoint(asio::io_context& context, const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path))
    return invalid_argument(format("the Unix socket path {} is longer than the system allows", path));
  RETURN_IF_ERROR(remove_stale_socket(context, path));
  return Endpoint(asio::local::stream_protocol::endpoint(path));
}

}  // namespace

Result<Acceptor> listen(asio::io_context& context, const ServerOptions& options) {
  const bool local = !options.uds_path.empty();
  Result<Endpoint> endpoint =
      local ? local_endpoint(context, options.uds_path) : tcp_endpoint(context, options);
  RETURN_IF_ERROR(endpoint.status());
  Acceptor acceptor(context);
  ErrorCode error;
  acceptor.open(endpoint->protocol(), error);
  // Only skips the wait for connections that are already closed; two listeners on one port stay refused.
  if (!error && !local) acceptor.set_option(Acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(*endpoint, error);
  // Between bind and listen nobody can connect, so the mode is right before the first client.
  if (!error && local && ::chmod(options.uds_path.c_str(), 0600) != 0)
    error = ErrorCode(errno, boost::system::system_category());
  if (!error) acceptor.listen(Acceptor::max_listen_connections, error);
  if (error) return bind_failed(options, error);
  return acceptor;
}

std::optional<asio::ip::tcp::endpoint> bound_endpoint(const Acceptor& acceptor) {
  ErrorCode error;
  Endpoint generic = acceptor.local_endpoint(error);
  if (error || generic.protocol().family() == AF_UNIX) return std::nullopt;
  asio::ip::tcp::endpoint endpoint;
  endpoint.resize(generic.size());
  std::memcpy(endpoint.data(), generic.data(), generic.size());
  return endpoint;
}

}  // namespace llm_dist::http
