// ShutdownSignal: SIGINT, SIGTERM and SIGUSR1 as something to wait for, and a way to ask for the same from
// inside. SIGHUP too, for who has something to read again.
#pragma once

#include <signal.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "src/base/clock.h"

namespace llm_dist::launch {

class ShutdownSignal {
 public:
  // Blocks the signals in this thread and those it starts later. Until wait() is called a signal ends the
  // process at once.
  ShutdownSignal() : ShutdownSignal(nullptr) {}
  // `on_hangup` is called by wait(), after each SIGHUP, also one that came before. Without it SIGHUP ends the
  // process.
  explicit ShutdownSignal(std::function<void()> on_hangup);
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Why the process is to end: "SIGTERM". A second signal, a second or more after the first, ends the process
  // at once; the first one behind a raise() only asks for the same again.
  std::string wait();
  // The same for who does not wait: from the first call on a signal is kept until it is asked for.
  bool is_raised();
  // Called before a signal ends the process at once. Returns once no earlier callback is running.
  void set_on_exit(std::function<void()> callback);
  // Called likewise, and after that one. `why`: "ended by a second SIGINT".
  using Farewell = std::function<void(const std::string& why, int signal)>;
  void set_farewell(Farewell callback);
  void ignore();
  void raise(const std::string& reason);

 private:
  void listen();

  const std::function<void()> on_hangup_;
  sigset_t signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> on_exit_;
  Farewell farewell_;
  bool waiting_ = false;
  bool ignoring_ = false;
  bool stopping_ = false;
  bool hung_up_ = false;
  std::string reason_;
  std::optional<TimePoint> signalled_at_;  // which raise() leaves alone
  std::thread listener_;
};

}  // namespace llm_dist::launch
