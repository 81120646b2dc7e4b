// Staged copy: data that the host must first read or compute goes to a device lot by lot, through a ring of
// pinned memory. Threads that live until the end fill some lots while others are copied, so that neither the
// reading nor the copying ever waits for all of the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "src/base/status.h"
#include "src/device/backend.h"

namespace llm_dist::device {

struct StagedCopy {
  size_t lots = 0;
  int64_t lot_bytes = 0;        // of the largest
  int threads = 1;              // that fill; the ring has two lots of memory for each of them
  double deadline_seconds = 0;  // of every single wait, for a lot or for a copy
  // Fills `memory` on thread `thread` of [0, threads). Lots begin in order, and none once one has failed.
  std::function<Status(size_t thread, size_t lot, std::byte* memory)> fill;
  // Issues the copies out of `memory` on the calling thread, in the order in which lots come to be filled.
  std::function<void(size_t lot, std::byte* memory)> copy;
};

// Returns when every copy has ended or with the first error of filling, memory or the stream; either way no
// thread fills any more and no copy reads the ring.
Status run_staged_copy(const StagedCopy& work, Backend& backend, Stream& stream);

}  // namespace llm_dist::device
