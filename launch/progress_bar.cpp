#include "launch/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace llm_dist::launch {
namespace {
constexpr size_t kBarWidth = 30;
}

std::string progress_text(size_t done, size_t total, size_t width) {
  size_t filled = total == 0 ? width : std::min(width, done * width / total);
  std::string of = std::to_string(total);
  std::string count = std::to_string(done);
  std::string padding(of.size() - std::min(of.size(), count.size()), ' ');
  return "[" + std::string(filled, '#') + std::string(width - filled, ' ') + "] " + padding + count + "/" +
         of;
}

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::show(size_t done, size_t total, const std::string& note) {
  if (!terminal_) return;
  shown_ = true;
  // Back to the first column, and what a longer line left behind is erased.
  std::fprintf(stderr, "\r%s  %s\x1b[K", progress_text(done, total, kBarWidth).c_str(), note.c_str());
  std::fflush(stderr);
}

void ProgressBar::clear() {
  if (!shown_) return;
  shown_ = false;
  std::fprintf(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace llm_dist::launch
