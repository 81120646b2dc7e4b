#include "comm/tcp/local_secret.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/host/socket.h"

namespace llm_dist::comm {
namespace {

struct LocalName {
  sockaddr_un address{};
  socklen_t bytes = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

LocalName local_name(uint16_t port) {
  std::string name = format("llm-dist-{}-{}", getuid(), port);
  LocalName local;
  local.address.sun_family = AF_UNIX;
  // The zero in front is what makes it abstract.
  std::copy(name.begin(), name.end(), local.address.sun_path + 1);
  local.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return local;
}

Fd local_socket() { return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

bool is_same_user(const Fd& fd) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  return ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == ::getuid();
}

}  // namespace

Result<Fd> offer_local_secret(uint16_t port) {
  Fd fd = local_socket();
  LocalName name = local_name(port);
  if (!fd.valid() || ::bind(fd.get(), name.get(), name.bytes) != 0 || ::listen(fd.get(), SOMAXCONN) != 0)
    return failed_precondition(
        format("another launch on this host meets at port {}: choose one with --master-port ({})",
               port,
               std::strerror(errno)));
  return fd;
}

void hand_over_secret(const Fd& offer, const Secret& secret) {
  while (true) {
    Fd fd(::accept4(offer.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd.valid()) return;
    // A fresh socket takes 32 bytes at once.
    if (is_same_user(fd)) write_some(fd, secret);
  }
}

Result<Secret> take_local_secret(uint16_t port, Deadline deadline) {
  Fd fd = local_socket();
  LocalName name = local_name(port);
  if (!fd.valid() || ::connect(fd.get(), name.get(), name.bytes) != 0)
    return unavailable(format("rank 0 of this user does not meet at port {}", port));
  if (!is_same_user(fd)) return failed_precondition(format("another user meets at port {}", port));
  Secret secret{};
  RETURN_IF_ERROR(read_fully(fd, secret, deadline));
  return secret;
}

}  // namespace llm_dist::comm
