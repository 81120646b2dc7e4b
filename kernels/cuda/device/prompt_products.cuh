// How a warpgroup of prompt_linear.cu multiplies what stands in the stages (prompt_stages.cuh), and stores
// it.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/prompt_stages.cuh"
#include "kernels/cuda/device/silu.cuh"

namespace llm_dist::kernels::prompt_products {

// What a warpgroup does with 64 rows of a block's tiles. Its sums lie as device/wgmma.cuh says: those of the
// tile's first 128 rows of W, then those of its second.
template <typename T, typename Kind, typename C>
struct Multiplier {
  const Memory<Kind>& memory;
  const Walk<Kind, C>& walk;
  const int group;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Cursor<Kind::kStages> cursor;
  // The tile that stands in shared memory, and the first of its boxes that has not been stored.
  const CUtensorMap* y = nullptr;
  int out_row = 0;
  int out_column = 0;
  int next_box = Memory<Kind>::kOutBoxes;

  // The blocks above, below and beside this one write to its stages, and so does itself.
  __device__ void leave(int stage) const {
    if (thread < C::kBlocks && (thread % C::kRows == walk.row || thread / C::kRows == walk.column))
      barrier_arrive_in_block(memory.empty + stage, thread);
  }

  __device__ void multiply(float (&sums)[kSums]) {
    int behind = -1;  // a stage that products still read
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      products_begin(sums);
      const uint64_t x = swizzled_tile(memory.x(cursor.stage, group));
      const uint64_t w = swizzled_tile(memory.w(cursor.stage));
#pragma unroll
      for (int k = 0; k < kRowBytes / 16; k += 2)  // that unit is theirs
        multiply_256_tiles(T(), sums, x + k, w + k, step > 0 || k > 0);
      products_issued();
      products_done<1>(sums);
      if (behind >= 0) leave(behind);
      behind = cursor.stage;
      cursor.advance();
      if constexpr (!Kind::kStoresAtOnce) {
        if ((step + 1) % walk.args.steps_a_box == 0) store_next();
      }
    }
    products_done<0>(sums);
    leave(behind);
  }
  // Where no row of x is. A thread that fell behind by a round of the ring would miss phases: without
  // products to wait for each other in, threads meet.
  __device__ void pass_over() {
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      barrier_of_group(group);
      leave(cursor.stage);
      cursor.advance();
    }
  }

  // Two neighbouring columns of a row of y.
  __device__ static uint32_t pair_at(const float (&sums)[kSums], int at) {
    const uint32_t pair = pack_pair(T(), sums[at], sums[at + 1]);
    if constexpr (std::is_same_v<Kind, Plain>) return pair;
    const float2 gate = pair_of(T(), pair);
    const float2 up = pair_of(T(), pack_pair(T(), sums[at + kSums / 2], sums[at + kSums / 2 + 1]));
    return pack_pair(T(), silu_approx(gate.x) * up.x, silu_approx(gate.y) * up.y);
  }
  __device__ void store_next() {
    if (next_box == Memory<Kind>::kOutBoxes) return;
    if (thread == 0) {
      store_box(*y, out_column + next_box * kStageColumns, out_row, memory.out(group, next_box));
      stores_issued();
    }
    ++next_box;
  }
  __device__ void store_rest() {
#pragma unroll 1
    while (next_box < Memory<Kind>::kOutBoxes) store_next();
  }
  // Through shared memory, permuted as TMA expects it, which also leaves out rows behind the last.
  __device__ void store(const float (&sums)[kSums], const CUtensorMap& map, int row, int column) {
    constexpr int kBoxPieces = kRowBytes / 16;
    store_rest();  // of the tile before
    if (thread == 0) stores_read();
    barrier_of_group(group);
    const int lane = thread % kWarpSize;
    const int lane_row = thread / kWarpSize * 16 + lane % 16;  // that this lane names
#pragma unroll
    for (int piece = 0; piece < Kind::kColumns / 8; piece += 2) {
      uint32_t pairs[4];  // of eight columns two rows that are eight apart, then of the next eight columns
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = pair_at(sums, 4 * piece + 2 * i);
      const int at = piece % kBoxPieces + lane / 16;
      auto* to = reinterpret_cast<uint4*>(memory.out(group, piece / kBoxPieces) + lane_row * kRowBytes);
      store_matrices(to + (at ^ lane_row % 8), pairs);
    }
    release_to_products();
    barrier_of_group(group);
    y = &map;
    out_row = row;
    out_column = column;
    next_box = 0;
    if constexpr (Kind::kStoresAtOnce) store_rest();
  }
};

}  // namespace llm_dist::kernels::prompt_products
