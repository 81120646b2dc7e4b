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

// Who gets this rank's rows next, `distance` from 1 on: that one wants them so many shares behind its own,
// and nobody else sends to it meanwhile.
__device__ inline int next_to_get(const device::HandedRows& rows, int distance) {
  return rows.rank - distance + (distance > rows.rank ? rows.size : 0);
}

// Copies one warp's part of this rank's rows to the other ranks, one after the other, of `warps`, this one
// the warp-th. The last one that is done with a rank tells it.
__device__ inline void hand_rows(const device::HandedRows& rows, int warp, int warps) {
  constexpr int kAtOnce = 3;  // units on their way; registers have room for no more
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int units = static_cast<int>(rows.share_bytes / kHandedUnit);
  const int64_t share = rows.rank * rows.share_bytes;
  const auto* from = reinterpret_cast<const uint4*>(rows.rows[rows.rank] + share);
  const int step = warps * kWarpSize;
#pragma unroll 1
  for (int distance = 1; distance < rows.size; ++distance) {
    const int rank = next_to_get(rows, distance);
    auto* to = reinterpret_cast<uint4*>(rows.rows[rank] + share);
#pragma unroll 1
    for (int i = warp * kWarpSize + lane; i < units; i += kAtOnce * step) {
      uint4 loaded[kAtOnce] = {};
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * step < units) loaded[j] = __ldcg(from + i + j * step);
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        if (i + j * step < units) to[i + j * step] = loaded[j];
      }
    }
    __syncwarp();  // all lanes' copies go before the release, too
    if (lane == 0 && count_done(rows.warps_done + rank) + 1 == static_cast<uint32_t>(warps)) {
      rows.warps_done[rank] = 0;
      store_release(rows.come[rank] + rows.rank, load_relaxed(rows.calls));
    }
  }
}

// Returns when the rows of `source` have come, for copies by TMA to read, or when nobody is to wait any more.
// One thread calls it, which then asks for the copies.
__device__ inline void await_rows(const device::HandedRows& rows, int source) {
  const uint64_t* come = rows.come[rows.rank] + source;
  // Past the first-level cache, which may hold what it was: not all who call it have waited for the call.
  const uint64_t wanted = load_relaxed(rows.calls);
  uint32_t polls = first_poll();
  while (load_acquire(come) < wanted) {
    if (gives_up(rows.aborted, polls)) return;
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace llm_dist::kernels
