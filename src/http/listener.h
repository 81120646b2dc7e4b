// Listening sockets: binding them, and saying why it failed. Internal to this folder.
#pragma once

#include <boost/asio/basic_socket_acceptor.hpp>

#include "src/base/status.h"
#include "src/http/server.h"
#include "src/http/transport.h"

namespace llm_dist::http {

using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

// Bound and listening, on the options' Unix socket or host and port.
Result<Acceptor> listen(asio::io_context& context, const ServerOptions& options);
// 0 for a Unix socket.
uint16_t bound_port(const Acceptor& acceptor);

}  // namespace llm_dist::http
