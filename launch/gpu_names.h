// The GPUs of this host, found without opening them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/base/clock.h"
#include "src/base/status.h"

namespace llm_dist::launch {

// What CUDA_VISIBLE_DEVICES calls each of the first `count` GPUs that a process sees whose own is `visible`
// (nullptr: unset): its entries, numbers or UUIDs, else numbers.
std::vector<std::string> gpu_names(int count, const char* visible);

// Those that `count` finds, by name; where it fails, none. It runs in a process of its own, so that this one
// keeps nothing of a driver. unavailable: it did not come back within `patience`, or was killed. Before this
// process starts a thread.
Result<std::vector<std::string>> find_gpus(const std::function<Result<int>()>& count, Duration patience);

}  // namespace llm_dist::launch
