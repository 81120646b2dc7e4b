#include "launch/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace llm_dist::launch {

// The last line may lack its line break.
bool LineReader::take_line(std::string& line) {
  size_t end = buffer_.find('\n');
  if (end == std::string::npos && (!ended_ || buffer_.empty())) return false;
  line = buffer_.substr(0, end);
  buffer_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

LineReader::Outcome LineReader::read(std::string& line) {
  std::array<char, 4096> bytes;
  while (!take_line(line)) {
    if (ended_) return Outcome::kEnd;
    std::array<pollfd, 2> waited = {pollfd{.fd = fd_, .events = POLLIN, .revents = 0},
                                    pollfd{.fd = interrupt_fd_, .events = POLLIN, .revents = 0}};
    // A person may take as long as they like.
    if (poll(waited.data(), waited.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return Outcome::kEnd;
    }
    if (waited[1].revents != 0) return Outcome::kInterrupted;
    ssize_t count = ::read(fd_, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    ended_ = count <= 0;
    if (count > 0) buffer_.append(bytes.data(), static_cast<size_t>(count));
  }
  return Outcome::kLine;
}

}  // namespace llm_dist::launch
