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

// Copies one warp's part of so many units from `offset` on to the same place in the memory of `rank`. Few
// registers: two units are on their way.
__device__ inline void hand_units(
    const device::HandedRows& rows, int rank, int64_t offset, int64_t bytes, int warp, int warps) {
  const auto* from = reinterpret_cast<const uint4*>(rows.rows[rows.rank] + offset);
  auto* to = reinterpret_cast<uint4*>(rows.rows[rank] + offset);
  const auto units = static_cast<int>(bytes / static_cast<int64_t>(sizeof(uint4)));
  const int step = warps * kWarpSize;
#pragma unroll 1
  for (int unit = warp * kWarpSize + static_cast<int>(threadIdx.x) % kWarpSize; unit < units;
       unit += 2 * step) {
    const bool two = unit + step < units;
    const uint4 first = __ldcg(from + unit);
    const uint4 second = two ? __ldcg(from + unit + step) : uint4{};
    to[unit] = first;
    if (two) to[unit + step] = second;
  }
}

// Copies one warp's part of this rank's rows to all other ranks, of `warps`, this one the warp-th. The last
// one that is done with a rank tells it. Each rank reads its own rows first and then those of the ranks
// behind it in turn (PromptLinear), so this one hands them to the rank in front of it first, and so on: what
// is read first has come first, and each rank hears from one other at a time.
__device__ inline void hand_rows(const device::HandedRows& rows, int warp, int warps) {
  const int64_t scales = rows.size * rows.share_bytes + rows.rank * rows.scale_bytes;
#pragma unroll 1
  for (int distance = 1; distance < rows.size; ++distance) {
    const int rank = rows.rank - distance + (rows.rank < distance ? rows.size : 0);
    hand_units(rows, rank, rows.rank * rows.share_bytes, rows.share_bytes, warp, warps);
    if (rows.scale_bytes > 0) hand_units(rows, rank, scales, rows.scale_bytes, warp, warps);
    __syncwarp();  // all lanes' copies go before the release, too
    uint32_t* done = rows.warps_done + rank;
    if (threadIdx.x % kWarpSize > 0 || count_done(done) + 1 < static_cast<uint32_t>(warps)) continue;
    *done = 0;
    store_release(rows.come[rank] + rows.rank, load_relaxed(rows.calls));
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
