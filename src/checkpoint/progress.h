// ProgressBar: bytes done, GB/s and time left, redrawn in place on a terminal and as a line every few seconds
// in a log file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "src/base/clock.h"

namespace llm_dist::checkpoint {

// "loading weights  1.25 / 5.00 GB   25 %  2.50 GB/s  2 s left"
std::string progress_line(std::string_view label, int64_t bytes_done, int64_t bytes_total, double seconds);

class ProgressBar {
 public:
  explicit ProgressBar(std::string label, std::FILE* out = stderr);

  // Safe from several threads; draws at most every 0.1 s on a terminal, every 5 s elsewhere. The rate is that
  // between the first call and the last one, whatever the process did before and has done since.
  void update(int64_t bytes_done, int64_t bytes_total);
  // Draws the last state and ends the line.
  void finish();

 private:
  void draw(bool last);

  std::string label_;
  std::FILE* out_;
  bool terminal_;
  std::mutex mutex_;
  TimePoint drawn_;
  std::optional<TimePoint> first_;  // and last call of update()
  TimePoint last_;
  int64_t bytes_done_ = 0;
  int64_t bytes_total_ = 0;
};

}  // namespace llm_dist::checkpoint
