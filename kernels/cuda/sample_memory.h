// What sampling by teams of blocks (sample.cu) needs of memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/row_team.h"

namespace llm_dist::kernels {

// Of the most probable token (device/vocab_share.cuh); of all entries together it fits 64 bits.
inline constexpr int kMassBits = 44;
inline constexpr int64_t kMostVocab = int64_t{1} << (63 - kMassBits);

// A 32-bit key for each entry of a row, in shared memory where a block's share of
// them fits there.
struct SampleMemory {
  int blocks = 1;              // of a row's team
  int64_t shared_bytes = 0;    // of a block; 0 where keys are in device memory
  int64_t words_of_entry = 1;  // of device memory: a count, and the key where it is there

  // On the calling thread's device.
  static SampleMemory of(int64_t vocab, bool teams_allowed) {
    SampleMemory memory{.blocks = team_blocks_for(1, teams_allowed)};
    const int64_t key_bytes = (vocab + memory.blocks - 1) / memory.blocks * int64_t{sizeof(uint32_t)};
    const bool fits = key_bytes <= most_shared_bytes(memory.blocks);
    memory.shared_bytes = fits ? key_bytes : 0;
    memory.words_of_entry = fits ? 1 : 2;
    return memory;
  }
  // Of keys, for a block of a team of so many.
  static int64_t most_shared_bytes(int blocks) {
    constexpr int64_t kAlone = 32 << 10;    // as every device has them
    constexpr int64_t kBesides = 27 << 10;  // what a block has for other things
    int device = 0;
    int most = 0;
    const bool knows =
        blocks > 1 && cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess;
    return knows ? most - kBesides : kAlone;
  }
};

}  // namespace llm_dist::kernels
