#include "launch/interrupt_key.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "launch/exit_code.h"
#include "src/base/check.h"

namespace llm_dist::launch {
namespace {
constexpr int kPollMilliseconds = 50;
}  // namespace

InterruptKey::InterruptKey() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  fd_ = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
  CHECK(fd_ >= 0, "signalfd failed");
  watcher_ = std::thread([this] {
    pollfd readable{.fd = fd_, .events = POLLIN, .revents = 0};
    while (!begun_) {
      if (poll(&readable, 1, kPollMilliseconds) == 1 && !begun_) _exit(kSignalExitBase + SIGINT);
    }
  });
}

InterruptKey::~InterruptKey() {
  stop_watching();
  ::close(fd_);
}

void InterruptKey::stop_watching() {
  begun_ = true;
  if (watcher_.joinable()) watcher_.join();
}

void InterruptKey::begin() { stop_watching(); }

bool InterruptKey::take() {
  bool pressed = false;
  signalfd_siginfo info{};
  while (::read(fd_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) pressed = true;
  return pressed;
}

}  // namespace llm_dist::launch
