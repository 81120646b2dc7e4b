// Rows of x that come from other ranks while a product is multiplied (src/device/handed_rows.h). A product
// begins with this rank's own rows, and some of its warps copy these to the other ranks meanwhile; before it
// reads another rank's it waits for a word of that rank's product.
//
// Every block takes part in the copying, beside what it multiplies, and waits only in front of other ranks'
// rows: so that all of a rank's rows come, all of its blocks have to find room at the same time, which is
// given where no other kernel on the GPU waits for a peer meanwhile.
#pragma once

#include "kernels/cuda/device/peer_terms.cuh"
#include "kernels/cuda/launch.h"
#include "src/device/handed_rows.h"

namespace llm_dist::kernels {

inline constexpr int kHandedUnit = 16;  // bytes

// Copies one warp's part of a run of this rank's columns, so many units from `begin` on, to all other ranks,
// of `warps`, this one the warp-th.
__device__ inline void hand_run(const device::HandedRows& rows, int begin, int units, int warp, int warps) {
  constexpr int kAtOnce = 3;  // units on their way
  const int row_units = static_cast<int>(rows.row_bytes) / kHandedUnit;
  const int all_units = static_cast<int>(rows.share_bytes / rows.row_bytes) * units;
  const int64_t share = rows.rank * rows.share_bytes;
  const auto* from = reinterpret_cast<const uint4*>(rows.rows[rows.rank] + share);
  const int step = warps * kWarpSize;
  int i = warp * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 1
  for (; i < all_units; i += kAtOnce * step) {
    int at[kAtOnce];
    uint4 loaded[kAtOnce] = {};
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int unit = i + j * step;
      at[j] = unit < all_units ? unit / units * row_units + begin + unit % units : -1;
      if (at[j] >= 0) loaded[j] = __ldcg(from + at[j]);
    }
#pragma unroll 1
    for (int distance = 1; distance < rows.size; ++distance) {
      const int rank = rows.rank + distance - (rows.rank + distance < rows.size ? 0 : rows.size);
      auto* to = reinterpret_cast<uint4*>(rows.rows[rank] + share);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (at[j] >= 0) to[at[j]] = loaded[j];
      }
    }
  }
}

// All ranks know of one more run of this rank's rows. One thread calls it, who has seen to it that they come.
__device__ inline void tell_of_run(const device::HandedRows& rows, int run) {
  const uint64_t before = (load_relaxed(rows.calls) - 1) * device::kHandedRuns;
  for (int rank = 0; rank < rows.size; ++rank) {
    if (rank != rows.rank)
      store_release(rows.come[rank] + rows.rank, before + static_cast<uint64_t>(run) + 1);
  }
}

// Copies one warp's part of this rank's rows to all other ranks, run after run of columns, of `warps`, this
// one the warp-th. The last warp that is done with a run tells them.
__device__ inline void hand_rows(const device::HandedRows& rows, int warp, int warps) {
  const int row_units = static_cast<int>(rows.row_bytes) / kHandedUnit;
  const int run_units = static_cast<int>(device::handed_run_bytes(rows.row_bytes)) / kHandedUnit;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  if (warp == 0 && first_lane) tell_of_run(rows, 0);  // it is there already
#pragma unroll 1
  for (int run = 1; run < device::kHandedRuns; ++run) {
    const int units = min(run_units, row_units - run * run_units);
    if (units > 0) hand_run(rows, run * run_units, units, warp, warps);
    __syncwarp();  // all lanes' copies go before the release, too
    uint32_t* done = rows.warps_done + run;
    if (!first_lane || count_done(done) + 1 < static_cast<uint32_t>(warps)) continue;
    *done = 0;
    tell_of_run(rows, run);
  }
}

// Returns when so many runs, this one among them, of `source` have come, for copies by TMA to read; all of
// them when nobody is to wait any more. One thread calls it, which then asks for the copies.
__device__ inline int await_run(const device::HandedRows& rows, int source, int run) {
  const uint64_t* come = rows.come[rows.rank] + source;
  // Past the first-level cache, which may hold what it was: not all who call it have waited for the call.
  const uint64_t before = (load_relaxed(rows.calls) - 1) * device::kHandedRuns;
  const uint64_t wanted = before + static_cast<uint64_t>(run) + 1;
  uint32_t polls = first_poll();
  uint64_t number = 0;
  while ((number = load_acquire(come)) < wanted) {
    if (gives_up(rows.aborted, polls)) return device::kHandedRuns;
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
  return static_cast<int>(number - before);
}

}  // namespace llm_dist::kernels
