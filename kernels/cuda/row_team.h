// How many blocks share a row (device/row_team.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/overlapped_launch.h"

namespace llm_dist::kernels {

// As the kernels are compiled: device code for less than compute capability 9.0 knows no teams, wherever it
// runs.
#ifdef LLM_DIST_SM90A
inline constexpr bool kCompiledForTeams = true;
#else
inline constexpr bool kCompiledForTeams = false;
#endif

// Clusters of so many blocks are to be had on every device that has any.
inline constexpr int kMostTeamBlocks = 8;

// What the teams of so many rows are to be launched with on the calling thread's device, in clusters along x:
// fewer where all have enough to do with fewer, one where no teams are `allowed`.
inline int team_blocks_for(int64_t rows, bool allowed) {
  constexpr int64_t kEnoughBlocks = 512;
  int blocks = allowed && kCompiledForTeams && has_clusters() ? kMostTeamBlocks : 1;
  while (blocks > 1 && rows * blocks > kEnoughBlocks) blocks /= 2;
  return blocks;
}

}  // namespace llm_dist::kernels
