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

// Copies one warp's part of this rank's rows to all other ranks, of `warps`, this one the warp-th. The last
// one that is done tells them. Few registers: two units of 16 bytes are on their way.
__device__ inline void hand_rows(const device::HandedRows& rows, int warp, int warps) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const auto units = static_cast<int>(rows.share_bytes / static_cast<int64_t>(sizeof(uint4)));
  const int64_t share = rows.rank * rows.share_bytes;
  const auto* from = reinterpret_cast<const uint4*>(rows.rows[rows.rank] + share);
  const int step = warps * kWarpSize;
#pragma unroll 1
  for (int unit = warp * kWarpSize + lane; unit < units; unit += 2 * step) {
    const bool two = unit + step < units;
    const uint4 first = __ldcg(from + unit);
    const uint4 second = two ? __ldcg(from + unit + step) : uint4{};
#pragma unroll 1
    for (int distance = 1; distance < rows.size; ++distance) {
      const int rank = rows.rank + distance;
      auto* to = reinterpret_cast<uint4*>(rows.rows[rank < rows.size ? rank : rank - rows.size] + share);
      to[unit] = first;
      if (two) to[unit + step] = second;
    }
  }
  __syncwarp();  // all lanes' copies go before the release, too
  if (lane > 0 || count_done(rows.warps_done) + 1 < static_cast<uint32_t>(warps)) return;
  *rows.warps_done = 0;
  for (int rank = 0; rank < rows.size; ++rank) {
    if (rank != rows.rank) store_release(rows.come[rank] + rows.rank, load_relaxed(rows.calls));
  }
}

// Returns when all rows of `source` have come, for copies by TMA to read, or nobody is to wait any more. One
// thread calls it, which then asks for the copies.
__device__ inline void await_rows(const device::HandedRows& rows, int source) {
  const uint64_t* come = rows.come[rows.rank] + source;
  // Past the first-level cache, which may hold what it was: not all who call it have waited for the call.
  const uint64_t number = load_relaxed(rows.calls);
  uint32_t polls = first_poll();
  while (load_acquire(come) < number && !gives_up(rows.aborted, polls)) {
  }
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace llm_dist::kernels
