// InterruptKey: Ctrl-C (SIGINT) as something to look at, for a program that goes on after it.
#pragma once

#include <atomic>
#include <thread>

namespace llm_dist::launch {

class InterruptKey {
 public:
  // Blocks the signal in this thread and those it starts later. Until begin() it ends the process.
  InterruptKey();
  ~InterruptKey();
  InterruptKey(const InterruptKey&) = delete;
  InterruptKey& operator=(const InterruptKey&) = delete;

  // From now on a press is kept until it is taken.
  void begin();
  // Readable, for poll(), while there is a press to take.
  int fd() const { return fd_; }
  // Whether the key was pressed since the last call.
  bool take();

 private:
  void stop_watching();

  int fd_ = -1;
  std::atomic<bool> begun_{false};
  std::thread watcher_;
};

}  // namespace llm_dist::launch
