// Listening sockets: binding them, and saying why it failed. Internal to this folder.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <optional>

#include "src/base/status.h"
#include "src/http/server.h"
#include "src/http/transport.h"

namespace llm_dist::http {

using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

// Bound and listening, on the options' Unix socket or host and port.
Result<Acceptor> listen(asio::io_context& context, const ServerOptions& options);
// Nothing for a Unix socket.
std::optional<asio::ip::tcp::endpoint> bound_endpoint(const Acceptor& acceptor);

}  // namespace llm_dist::http
