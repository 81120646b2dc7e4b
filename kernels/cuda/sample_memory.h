// What sampling by teams of blocks (sample.cu) needs of memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/row_team.h"

namespace llm_dist::kernels {

// A 32-bit key for each entry of a row, in shared memory where a block's share of
// them fits there.
struct SampleMemory {
  int blocks = 1;              // of a row's team
  int64_t shared_bytes = 0;    // of a block; 0 where keys are in device memory
  int64_t words_of_entry = 1;  // of device memory: a count, and the key where it is there

  // On the calling thread's device.
  static SampleMemory of(int64_t vocab) {
    constexpr int64_t kMostShared = 200 << 10;
    constexpr int64_t kMostSharedAlone = 32 << 10;  // of a block without a team, as every device has them
    SampleMemory memory{.blocks = team_blocks_for(1)};
    const int64_t key_bytes = (vocab + memory.blocks - 1) / memory.blocks * int64_t{sizeof(uint32_t)};
    const bool fits = key_bytes <= (memory.blocks > 1 ? kMostShared : kMostSharedAlone);
    memory.shared_bytes = fits ? key_bytes : 0;
    memory.words_of_entry = fits ? 1 : 2;
    return memory;
  }
};

}  // namespace llm_dist::kernels
