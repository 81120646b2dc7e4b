// TCP sockets with deadlines. Every socket is non-blocking and close-on-exec.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/host/fd.h"
#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::comm {

struct Endpoint {
  std::string address;  // numeric, IPv4 or IPv6
  uint16_t port = 0;
};
std::string to_string(const Endpoint& endpoint);

// The address that this machine has for `peer`. Sends nothing: connecting a datagram socket only looks the
// route up.
Result<std::string> address_towards(const std::string& peer);

struct Listener {
  Fd fd;
  Endpoint endpoint;
};
// Port 0: one that the system chooses.
Result<Listener> listen_at(const std::string& address, uint16_t port = 0);
// Takes over a socket that listens already.
Result<Listener> adopt_listener(Fd fd);
// The numeric addresses of a host's name, IPv4 first; a numeric one gives itself.
Result<std::vector<std::string>> resolve_host(const std::string& name);
bool is_loopback(const std::string& address);
// The local end of a connection.
Result<std::string> local_address(const Fd& fd);
Result<Fd> connect_to(const Endpoint& endpoint, Deadline deadline);
// Nothing (an invalid Fd) when nobody waits.
Result<Fd> accept_one(const Listener& listener);

// poll()'s timeout: rounded up, so that a wait never ends before its deadline.
int poll_timeout_ms(Deadline deadline);
Status wait_ready(const Fd& fd, short events, Deadline deadline);
Status write_fully(const Fd& fd, std::span<const std::byte> bytes, Deadline deadline);
Status read_fully(const Fd& fd, std::span<std::byte> bytes, Deadline deadline);

enum class IoState : uint8_t { kProgress, kWouldBlock, kClosed };
struct IoResult {
  IoState state = IoState::kWouldBlock;
  size_t bytes = 0;
};
// One non-blocking system call. A reset connection counts as closed.
IoResult read_some(const Fd& fd, std::span<std::byte> bytes);
IoResult write_some(const Fd& fd, std::span<const std::byte> bytes);
// `head`, then `body`, in one system call.
IoResult write_some(const Fd& fd, std::span<const std::byte> head, std::span<const std::byte> body);

}  // namespace llm_dist::comm
