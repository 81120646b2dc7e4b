#include "tests/http/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace llm_dist::http {

RawClient::RawClient() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {}

RawClient::RawClient(uint16_t port, int receive_buffer_bytes) : RawClient() {
  if (receive_buffer_bytes > 0)
    (void)::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  connect(port);
}

RawClient::~RawClient() { close(); }

void RawClient::connect(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
}

void RawClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string RawClient::read_until(std::string_view mark) {
  std::string received;
  Deadline deadline = soon();
  while (!deadline.expired() && (mark.empty() || received.find(mark) == std::string::npos)) {
    pollfd waiting{fd_, POLLIN, 0};
    if (::poll(&waiting, 1, 100) <= 0) continue;
    char buffer[4096];
    ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
    if (size <= 0) {
      closed_ = true;
      break;
    }
    received.append(buffer, static_cast<size_t>(size));
  }
  return received;
}

bool RawClient::readable() const {
  pollfd waiting{fd_, POLLIN, 0};
  return ::poll(&waiting, 1, 0) > 0;
}

void RawClient::shutdown_write() { ::shutdown(fd_, SHUT_WR); }

void RawClient::reset() {
  linger abrupt{1, 0};
  (void)::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &abrupt, sizeof abrupt);
  close();
}

}  // namespace llm_dist::http
