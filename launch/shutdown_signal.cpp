#include "launch/shutdown_signal.h"

#include <string.h>
#include <unistd.h>

#include <ctime>
#include <utility>

#include "launch/exit_code.h"

namespace llm_dist::launch {
namespace {
// Launchers deliver one signal twice: srun and slurmd, mpirun and the terminal.
constexpr auto kSameSignal = std::chrono::seconds(1);
constexpr long kPollNanoseconds = 100'000'000;
}  // namespace

ShutdownSignal::ShutdownSignal(std::function<void()> on_hangup) : on_hangup_(std::move(on_hangup)) {
  sigemptyset(&signals_);
  if (on_hangup_) sigaddset(&signals_, SIGHUP);
  for (int number : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&signals_, number);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  listener_ = std::thread([this] { listen(); });
}

ShutdownSignal::~ShutdownSignal() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  listener_.join();
}

void ShutdownSignal::listen() {
  timespec poll{.tv_sec = 0, .tv_nsec = kPollNanoseconds};
  while (true) {
    int number = sigtimedwait(&signals_, nullptr, &poll);
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (number < 0 || ignoring_) continue;
    if (number == SIGHUP) {
      hung_up_ = true;
      changed_.notify_all();
      continue;
    }
    if (signalled_at_ && Clock::now() < *signalled_at_ + kSameSignal) continue;
    if (!waiting_ || signalled_at_) {
      if (on_exit_) on_exit_();
      if (farewell_)
        farewell_(
            std::string(signalled_at_ ? "ended by a second SIG" : "ended by SIG") + sigabbrev_np(number),
            number);
      _exit(kSignalExitBase + number);
    }
    signalled_at_ = Clock::now();
    if (reason_.empty()) reason_ = std::string("SIG") + sigabbrev_np(number);
    changed_.notify_all();
  }
}

std::string ShutdownSignal::wait() {
  std::unique_lock lock(mutex_);
  waiting_ = true;
  while (true) {
    changed_.wait(lock, [this] { return hung_up_ || !reason_.empty(); });
    if (!reason_.empty()) return reason_;
    hung_up_ = false;
    lock.unlock();
    on_hangup_();
    lock.lock();
  }
}

bool ShutdownSignal::is_raised() {
  std::lock_guard lock(mutex_);
  waiting_ = true;
  return !reason_.empty();
}

void ShutdownSignal::set_on_exit(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  on_exit_ = std::move(callback);
}

void ShutdownSignal::set_farewell(Farewell callback) {
  std::lock_guard lock(mutex_);
  farewell_ = std::move(callback);
}

void ShutdownSignal::ignore() {
  std::lock_guard lock(mutex_);
  ignoring_ = true;
}

void ShutdownSignal::raise(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (reason_.empty()) reason_ = reason;
  changed_.notify_all();
}

}  // namespace llm_dist::launch
