#include "comm/host/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace llm_dist::comm {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

Status socket_error(std::string_view what, int error = errno) {
  return unavailable(format("{}: {}", what, std::strerror(error)));
}

Result<SocketAddress> parse_address(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return invalid_argument(format("not an IP address: {}", address));
  SocketAddress result;
  std::memcpy(&result.storage, found->ai_addr, found->ai_addrlen);
  result.bytes = found->ai_addrlen;
  ::freeaddrinfo(found);
  return result;
}

std::string address_text(sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(address)->sin_addr)
                          : &reinterpret_cast<sockaddr_in6*>(address)->sin6_addr;
  ::inet_ntop(address->sa_family, bytes, text.data(), text.size());
  return text.data();
}

uint16_t port_of(const SocketAddress& address) {
  return ntohs(address.storage.ss_family == AF_INET
                   ? reinterpret_cast<const sockaddr_in&>(address.storage).sin_port
                   : reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
}

IoResult io_result(ssize_t n) {
  if (n > 0) return {IoState::kProgress, static_cast<size_t>(n)};
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  return {IoState::kClosed, 0};
}

}  // namespace

std::string to_string(const Endpoint& endpoint) {
  bool v6 = endpoint.address.find(':') != std::string::npos;
  return format(v6 ? "[{}]:{}" : "{}:{}", endpoint.address, endpoint.port);
}

Result<std::string> address_towards(const std::string& peer) {
  ASSIGN_OR_RETURN(SocketAddress address, parse_address(peer, 9));
  Fd fd(::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), address.get(), address.bytes) != 0)
    return socket_error(format("no route to {}", peer));
  return local_address(fd);
}

Result<Listener> adopt_listener(Fd fd) {
  SocketAddress own;
  if (::getsockname(fd.get(), own.get(), &own.bytes) != 0) return socket_error("getsockname");
  return Listener{.fd = std::move(fd),
                  .endpoint = {.address = address_text(own.get()), .port = port_of(own)}};
}

Result<Listener> listen_at(const std::string& address, uint16_t port) {
  ASSIGN_OR_RETURN(SocketAddress own, parse_address(address, port));
  Fd fd(::socket(own.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return socket_error("socket");
  int on = 1;  // a launch that ended a moment ago keeps no one from its port
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  std::string where = port == 0 ? address : to_string(Endpoint{.address = address, .port = port});
  if (::bind(fd.get(), own.get(), own.bytes) != 0) return socket_error(format("bind to {}", where));
  if (::listen(fd.get(), SOMAXCONN) != 0) return socket_error(format("listen at {}", where));
  return adopt_listener(std::move(fd));
}

Result<std::vector<std::string>> resolve_host(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int code = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (code != 0) return unavailable(format("host name {}: {}", name, ::gai_strerror(code)));
  std::vector<std::string> addresses;
  for (bool v4 : {true, false})
    for (addrinfo* entry = found; entry != nullptr; entry = entry->ai_next)
      if ((entry->ai_family == AF_INET) == v4) addresses.push_back(address_text(entry->ai_addr));
  ::freeaddrinfo(found);
  return addresses;
}

bool is_loopback(const std::string& address) { return address == "::1" || address.starts_with("127."); }

Result<std::string> local_address(const Fd& fd) {
  SocketAddress own;
  if (::getsockname(fd.get(), own.get(), &own.bytes) != 0) return socket_error("getsockname");
  return address_text(own.get());
}

namespace {

void set_no_delay(const Fd& fd) {
  int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline) {
  ASSIGN_OR_RETURN(SocketAddress peer, parse_address(endpoint.address, endpoint.port));
  Fd fd(::socket(peer.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return socket_error("socket");
  std::string what = "connect to " + to_string(endpoint);
  if (::connect(fd.get(), peer.get(), peer.bytes) != 0) {
    if (errno != EINPROGRESS) return socket_error(what);
    Status ready = wait_ready(fd, POLLOUT, deadline);
    if (!ready.ok()) return ready.with_context(what);
    int error = 0;
    socklen_t bytes = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) return socket_error(what, error);
  }
  set_no_delay(fd);
  return fd;
}

Result<Fd> accept_one(const Listener& listener) {
  Fd fd(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.valid()) {
    set_no_delay(fd);
    return fd;
  }
  bool nobody = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
  if (nobody) return Fd();
  return socket_error("accept");
}

int poll_timeout_ms(Deadline deadline) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining()).count();
  return static_cast<int>(std::min<int64_t>(left, INT_MAX));
}

Status wait_ready(const Fd& fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{.fd = fd.get(), .events = events};
    int ready = ::poll(&entry, 1, poll_timeout_ms(deadline));
    if (ready > 0) return ok_status();
    if (ready < 0 && errno != EINTR) return socket_error("poll");
    if (deadline.expired()) return deadline_exceeded("the peer did not answer in time");
  }
}

Status write_fully(const Fd& fd, std::span<const std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    IoResult result = write_some(fd, bytes);
    if (result.state == IoState::kClosed) return unavailable("the peer closed the connection");
    if (result.state == IoState::kWouldBlock) RETURN_IF_ERROR(wait_ready(fd, POLLOUT, deadline));
    bytes = bytes.subspan(result.bytes);
  }
  return ok_status();
}

Status read_fully(const Fd& fd, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    IoResult result = read_some(fd, bytes);
    if (result.state == IoState::kClosed) return unavailable("the peer closed the connection");
    if (result.state == IoState::kWouldBlock) RETURN_IF_ERROR(wait_ready(fd, POLLIN, deadline));
    bytes = bytes.subspan(result.bytes);
  }
  return ok_status();
}

IoResult read_some(const Fd& fd, std::span<std::byte> bytes) {
  return io_result(::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT));
}

IoResult write_some(const Fd& fd, std::span<const std::byte> bytes) { return write_some(fd, bytes, {}); }

IoResult write_some(const Fd& fd, std::span<const std::byte> head, std::span<const std::byte> body) {
  std::array<iovec, 2> parts{{{const_cast<std::byte*>(head.data()), head.size()},
                              {const_cast<std::byte*>(body.data()), body.size()}}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  return io_result(::sendmsg(fd.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

}  // namespace llm_dist::comm
