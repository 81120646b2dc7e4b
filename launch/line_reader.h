// LineReader: lines of a terminal or a pipe, while another descriptor can end the wait.
#pragma once

#include <string>

namespace llm_dist::launch {

class LineReader {
 public:
  enum class Outcome { kLine, kEnd, kInterrupted };

  // Neither is closed here. interrupt_fd: readable when there is something else to do.
  LineReader(int fd, int interrupt_fd) : fd_(fd), interrupt_fd_(interrupt_fd) {}

  // kLine: `line` holds it, without its line break. kEnd: no more lines, or the descriptor fails.
  Outcome read(std::string& line);

 private:
  bool take_line(std::string& line);

  int fd_;
  int interrupt_fd_;
  std::string buffer_;
  bool ended_ = false;
};

}  // namespace llm_dist::launch
