#include "comm/host/process_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace llm_dist::comm {
namespace {

struct ProcStat {
  char state = 0;
  uint64_t start_ticks = 0;
};

// False when there is no such process.
bool read_proc_stat(int64_t pid, ProcStat* out) {
  std::array<char, 64> path;
  std::snprintf(path.data(), path.size(), "/proc/%lld/stat", static_cast<long long>(pid));
  Fd fd(::open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return false;
  std::array<char, 1024> text;
  ssize_t n = ::read(fd.get(), text.data(), text.size() - 1);
  if (n <= 0) return false;
  text[static_cast<size_t>(n)] = 0;
  // The command name stands in parentheses and may hold anything, so fields count from the last ')'.
  const char* field = std::strrchr(text.data(), ')');
  if (field == nullptr || field[1] != ' ') return false;
  out->state = field[2];
  field += 2;                              // at field 3
  for (int skip = 3; skip < 22; ++skip) {  // on to field 22
    field = std::strchr(field + 1, ' ');
    if (field == nullptr) return false;
  }
  out->start_ticks = std::strtoull(field + 1, nullptr, 10);
  return true;
}

uint64_t own_pid_namespace() {
  struct stat info{};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

}  // namespace

ProcessId current_process() {
  ProcessId id{.pid = ::getpid(), .pid_namespace = own_pid_namespace()};
  ProcStat stat;
  if (read_proc_stat(id.pid, &stat)) id.start_ticks = stat.start_ticks;
  return id;
}

ProcessWatch::ProcessWatch(const ProcessId& id) {
  if (id.pid_namespace == 0 || id.pid_namespace != own_pid_namespace()) return;
  id_ = id;
#ifdef SYS_pidfd_open
  pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(id.pid), 0)));
  // The pid may have passed to another process before the descriptor was there.
  if (pidfd_.valid() && state() == ProcessState::kGone) pidfd_.reset();
#endif
}

ProcessState ProcessWatch::state() const {
  if (id_.pid == 0) return ProcessState::kUnknown;
  ProcStat stat;
  if (!read_proc_stat(id_.pid, &stat) || stat.start_ticks != id_.start_ticks) return ProcessState::kGone;
  if (stat.state == 'T' || stat.state == 't') return ProcessState::kStopped;
  // A thread group whose first thread alone has ended shows as a zombie too, but it lives on.
  bool zombie = stat.state == 'Z' || stat.state == 'X';
  if (zombie && pidfd_.valid()) {
    pollfd exited{.fd = pidfd_.get(), .events = POLLIN};
    return ::poll(&exited, 1, 0) == 1 ? ProcessState::kGone : ProcessState::kRunning;
  }
  return zombie ? ProcessState::kGone : ProcessState::kRunning;
}

}  // namespace llm_dist::comm
