// Counts and masses of a row's entries by place, of a block and of its team (vocab_ranks.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/vocab_share.cuh"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {

struct Tail {
  uint64_t mass = 0;
  uint32_t count = 0;  // where counts are wanted
};

// Of entries by places, the largest first. A mass is two words.
struct Histogram {
  static constexpr int kPlaces = 256;
  uint32_t low[kPlaces];
  uint32_t high[kPlaces];
  uint32_t count[kPlaces];

  __device__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kPlaces; i += kSampleThreads)
      low[i] = high[i] = count[i] = 0;
  }
  __device__ void add(int place, uint64_t mass, bool counts) {
    if (counts) atomicAdd(count + place, 1u);
    if (mass == 0) return;
    const auto lower = static_cast<uint32_t>(mass);
    const uint32_t carried = atomicAdd(low + place, lower) + lower < lower ? 1 : 0;
    if (const uint32_t upper = static_cast<uint32_t>(mass >> 32) + carried; upper > 0)
      atomicAdd(high + place, upper);
  }
  // Of all blocks of the team, several of which are asked at once.
  __device__ Tail of_team(int place, bool counts) const {
    constexpr int kAtOnce = 4;
    const int blocks = team_blocks();
    Tail sum;
#pragma unroll 1
    for (int first = 0; first < blocks; first += kAtOnce) {
      Tail some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = min(first + i, blocks - 1);
        some[i].mass = load_from_team(low + place, block) | uint64_t{load_from_team(high + place, block)}
                                                                << 32;
        if (counts) some[i].count = load_from_team(count + place, block);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= blocks) continue;
        sum.mass += some[i].mass;
        sum.count += some[i].count;
      }
    }
    return sum;
  }
};

}  // namespace llm_dist::kernels
