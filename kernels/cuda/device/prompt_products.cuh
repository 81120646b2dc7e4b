// How a warpgroup of prompt_linear.cu multiplies what stands in the stages (prompt_stages.cuh), and stores
// it.
#pragma once

#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/prompt_stages.cuh"
#include "kernels/cuda/device/silu.cuh"

namespace llm_dist::kernels::prompt_products {

// A warpgroup's place in the walk, from tile to tile.
template <typename Kind, typename C>
struct TileReader {
  const Memory<Kind>& memory;
  const Walk<Kind, C>& walk;
  const int group;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Cursor<Kind::kStages> cursor;
  Tile tile = walk.tile(walk.first());  // the next one

  // The blocks above, below and beside this one write to its stages, and so does itself.
  __device__ void leave(int stage) const {
    if (thread < C::kBlocks && (thread % C::kRows == walk.row || thread / C::kRows == walk.column))
      barrier_arrive_in_block(memory.empty + stage, thread);
  }
  // Where no row of x is; next_tile: its number in the walk. A thread that fell behind by a round of the ring
  // would miss phases: without products to wait for each other in, threads meet.
  __device__ void pass_over(int next_tile) {
    tile = walk.tile_or_last(next_tile);
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      barrier_of_group(group);
      leave(cursor.stage);
      cursor.advance();
    }
  }
  // The row of a warpgroup's 64 that this lane names where eight by eight elements go to shared memory at a
  // time (store_matrices).
  __device__ int named_row() const {
    const int lane = thread % kWarpSize;
    return thread / kWarpSize * 16 + lane % 16;
  }
  // Eight columns of y and the next eight, two rows of each that are eight apart in `pairs`: to their box,
  // permuted as TMA expects it. piece: of eight columns in the box, even.
  __device__ void put(std::byte* box, int piece, const uint32_t (&pairs)[4]) const {
    const int row = named_row();
    const int at = piece + thread % kWarpSize / 16;
    auto* to = reinterpret_cast<uint4*>(box + row * kRowBytes);
    store_matrices(to + (at ^ row % 8), pairs);
  }
};

// What a warpgroup does with 64 rows of a block's tiles of 16-bit elements. Its sums lie as device/wgmma.cuh
// says: those of the tile's first half of W's rows, then those of its second. A tile's are rounded when they
// are complete, kept in registers, and gated and stored while the next tile is multiplied: the registers of
// sums are free at once.
template <typename T, typename Kind, typename C>
struct Multiplier : TileReader<Kind, C> {
  using Base = TileReader<Kind, C>;
  using Base::cursor, Base::group, Base::leave, Base::memory, Base::thread, Base::tile, Base::walk;
  // Of the tile before, two neighbouring columns of a row in each, and which of its turns comes next.
  uint32_t kept[Kind::kSums / 2] = {};
  int turn = Kind::kTurns;
  const CUtensorMap* y = nullptr;
  int out_row = 0;
  int out_column = 0;

  // next_tile: its number in the walk.
  __device__ void multiply(float (&sums)[Kind::kSums], int next_tile) {
    const int steps = walk.args.steps;
    int behind = -1;  // a stage that products still read
    int turn_at = walk.args.steps_a_turn;
#pragma unroll 1
    for (int step = 1; step <= steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      products_begin(sums);
      const uint64_t x = swizzled_tile(memory.x(cursor.stage, group));
      const uint64_t w = swizzled_tile(memory.w(cursor.stage));
#pragma unroll
      for (int k = 0; k < kRowBytes / 16; k += 2)  // that unit is theirs
        multiply_wide_tiles(T(), sums, x + k, w + k, step > 1 || k > 0);
      products_issued();
      products_done<1>(sums);
      if (behind >= 0) leave(behind);
      behind = cursor.stage;
      cursor.advance();
      // While there is something to multiply: finding a tile takes hundreds of cycles.
      if (step == 1) tile = walk.tile_or_last(next_tile);
      // Before the last products are done: then the registers are needed for this tile.
#pragma unroll 1
      for (; turn < Kind::kTurns && (step >= turn_at || step == steps); turn_at += walk.args.steps_a_turn)
        take_turn();
    }
    products_done<0>(sums);
    leave(behind);
  }
  // A tile's sums, to be stored in turns.
  __device__ void keep(const float (&sums)[Kind::kSums], const CUtensorMap& map, const Tile& of) {
#pragma unroll
    for (int i = 0; i < Kind::kSums / 2; ++i) {
      kept[i] = pack_pair(T(), sums[2 * i], sums[2 * i + 1]);
      asm volatile("" : "+r"(kept[i]));  // here, and not where it is used
    }
    y = &map;
    out_row = of.row + group * kGroupRows;
    out_column = of.column;
    turn = 0;
  }
  // Two neighbouring columns of a row of y.
  __device__ uint32_t pair_at(int at) const {
    if constexpr (!Kind::kGates) return kept[at];
    const float2 gate = pair_of(T(), kept[at]);
    const float2 up = pair_of(T(), kept[at + Kind::kSums / 4]);
    return pack_pair(T(), silu_approx(gate.x) * up.x, silu_approx(gate.y) * up.y);
  }
  // Through shared memory, permuted as TMA expects it, which also leaves out rows behind the last.
  template <int kTurn>
  __device__ void take() {
    constexpr int kBoxPieces = kRowBytes / 16;
    constexpr int kPieces = Kind::kColumns / 8 / Kind::kTurns;
    constexpr int kFirst = kTurn * kPieces;
    constexpr int kBox = kFirst / kBoxPieces;
    std::byte* box = memory.out(group, kBox % Kind::kOutBoxes);
    if constexpr (kFirst % kBoxPieces == 0) {
      // Boxes are taken in turns; of a tile with an odd number of them the next one's first is the last
      // again.
      constexpr bool kInTurns = Kind::kColumns / Kind::kBoxColumns % Kind::kOutBoxes == 0;
      if (thread == 0) stores_read<kInTurns ? Kind::kOutBoxes - 1 : 0>();
      barrier_of_group(group);
    }
#pragma unroll
    for (int piece = kFirst; piece < kFirst + kPieces; piece += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = pair_at(2 * piece + i);
      this->put(box, piece % kBoxPieces, pairs);
    }
    if constexpr ((kFirst + kPieces) % kBoxPieces == 0) {
      release_to_products();
      barrier_of_group(group);
      if (thread == 0) {
        store_box(*y, out_column + kBox * Kind::kBoxColumns, out_row, box);
        stores_issued();
      }
      __syncwarp();
    }
  }
  __device__ void take_turn() {
    static_assert(Kind::kTurns == 3 || Kind::kTurns == 4);
    switch (turn++) {
      case 0: return take<0>();
      case 1: return take<1>();
      case 2:
        if constexpr (Kind::kTurns > 3) return take<2>();
        [[fallthrough]];
      default: return take<Kind::kTurns - 1>();
    }
  }
  __device__ void store_rest() {
#pragma unroll 1
    while (turn < Kind::kTurns) take_turn();
    if (thread == 0) stores_done();
  }
};

}  // namespace llm_dist::kernels::prompt_products
