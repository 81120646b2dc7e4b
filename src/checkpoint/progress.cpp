#include "src/checkpoint/progress.h"

#include <unistd.h>

#include <algorithm>

namespace llm_dist::checkpoint {

std::string progress_line(std::string_view label, int64_t bytes_done, int64_t bytes_total, double seconds) {
  double done_gb = static_cast<double>(bytes_done) / 1e9;
  double total_gb = static_cast<double>(bytes_total) / 1e9;
  double rate = seconds > 0.0 ? done_gb / seconds : 0.0;
  int percent = bytes_total > 0 ? static_cast<int>(100 * bytes_done / bytes_total) : 100;
  char text[128];
  std::snprintf(text, sizeof(text), "  %.2f / %.2f GB  %3d %%  %.2f GB/s", done_gb, total_gb, percent, rate);
  std::string line = std::string(label) + text;
  if (bytes_done >= bytes_total || rate <= 0.0) return line;
  std::snprintf(text, sizeof(text), "  %.0f s left", (total_gb - done_gb) / rate);
  return line + text;
}

ProgressBar::ProgressBar(std::string label, std::FILE* out)
    : label_(std::move(label)), out_(out), terminal_(::isatty(::fileno(out)) != 0), drawn_(Clock::now()) {}

void ProgressBar::update(int64_t bytes_done, int64_t bytes_total) {
  std::lock_guard lock(mutex_);
  bytes_done_ = bytes_done;
  bytes_total_ = bytes_total;
  last_ = Clock::now();
  if (!first_) first_ = last_;
  auto period = terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(5000);
  if (last_ - drawn_ < period) return;
  drawn_ = last_;
  draw(false);
}

void ProgressBar::finish() {
  std::lock_guard lock(mutex_);
  draw(true);
}

void ProgressBar::draw(bool last) {
  const double seconds = first_ ? seconds_between(*first_, last_) : 0;
  std::string line = progress_line(label_, bytes_done_, bytes_total_, seconds);
  // ESC[K clears what a longer line left behind.
  std::fprintf(out_, "%s%s%s", terminal_ ? "\r" : "", line.c_str(), terminal_ ? "\x1b[K" : "");
  if (!terminal_ || last) std::fputc('\n', out_);
  std::fflush(out_);
}

}  // namespace llm_dist::checkpoint
