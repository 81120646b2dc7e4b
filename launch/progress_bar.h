// A line on the terminal that shows how far something is; nothing where standard error is no terminal.
#pragma once

#include <string>

namespace llm_dist::launch {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `note` stands behind the bar.
  void show(size_t done, size_t total, const std::string& note);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

// "[######    ]  60/100"
std::string progress_text(size_t done, size_t total, size_t width);

}  // namespace llm_dist::launch
