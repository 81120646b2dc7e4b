// Is a process of this machine still there? Survives zombies and reused pids.
#pragma once

#include <cstdint>

#include "comm/host/fd.h"

namespace llm_dist::comm {

// A pid with what tells it from a later process of the same pid. Plain data: it travels between ranks.
struct ProcessId {
  int64_t pid = 0;
  uint64_t start_ticks = 0;    // /proc/PID/stat, field 22
  uint64_t pid_namespace = 0;  // pids of another namespace mean nothing here

  bool operator==(const ProcessId&) const = default;
};

ProcessId current_process();

enum class ProcessState : uint8_t { kRunning, kStopped, kGone, kUnknown };

class ProcessWatch {
 public:
  ProcessWatch() = default;  // watches nothing: always kUnknown
  explicit ProcessWatch(const ProcessId& id);

  // Readable once the process has ended; -1 where the kernel offers no such thing.
  int pollable_fd() const { return pidfd_.get(); }
  // Reads /proc.
  ProcessState state() const;

 private:
  ProcessId id_;
  Fd pidfd_;
};

}  // namespace llm_dist::comm
