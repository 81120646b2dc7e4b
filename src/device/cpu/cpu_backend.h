// The CPU as a device: memory of the process, streams with threads of their own, graphs as recorded tasks.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "src/device/backend.h"

namespace llm_dist::device {

struct CpuBackendOptions {
  int threads = 1;  // that ops on this backend's streams may use
  // For tests: called on the stream's thread before each task with the stream's name and the task's number.
  std::function<void(const std::string& stream, uint64_t task)> before_task;
};

std::unique_ptr<Backend> make_cpu_backend(CpuBackendOptions options);

// Bytes this process may use at most and may still take: the lowest among its cgroups (v1 or v2) and the
// machine. What files fill as a cache may be taken. `root`: the folder that holds proc and sys, for tests.
MemoryInfo process_memory_info(const std::string& root = "");

// Of that, what one of `num_ranks` processes on this host may take: an even share, and no more than its limit
// of address space (ulimit -v, RLIMIT_AS), which is each process's own.
MemoryInfo memory_of_rank(int num_ranks);

}  // namespace llm_dist::device
