// The products of a strip of W with all rows of x (streamed_tiles.cuh), sums in registers: by a warpgroup,
// whose columns the rows of x are, so that few of them cost little.
//
// W in f8_e4m3 is widened on its way to the registers that the product takes it from; x stays as it is, and
// sums are scaled at the end. Two such blocks share a processor, so that one widens while the other
// multiplies.
#pragma once

#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace llm_dist::kernels::streamed {

// add_products(T, count, stages, cursor, sums): adds the next `count` stages of a strip to sums [64 rows of W
// × kTokens] of a warpgroup, laid out as device/wgmma.cuh says, and says of each that it is empty.
template <typename T, int kTokens, int kWarpgroups>
__device__ inline void add_products(T,
                                    int count,
                                    const Stages<false, kTokens, kWarpgroups>& stages,
                                    Cursor<Stages<false, kTokens, kWarpgroups>::kCount>& cursor,
                                    float (&sums)[kTokens / 2]) {
  using S = Stages<false, kTokens, kWarpgroups>;
  const int group = kWarpgroups == 1 ? 0 : warp_number() / (kGroupThreads / kWarpSize);
  const bool is_first = static_cast<int>(threadIdx.x) == group * kGroupThreads;
  int behind = -1;  // a stage that products still read
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    products_begin(sums);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const std::byte* weights = stages.weights(cursor.stage, box) + group * kProductRows * kRowBytes;
      const std::byte* x = stages.x(cursor.stage, box);
#pragma unroll
      for (int k = 0; k < kRowBytes; k += 32)
        multiply_tiles(T(), sums, swizzled_tile(weights + k), swizzled_tile(x + k));
    }
    products_issued();
    products_done<1>(sums);
    if (is_first && behind >= 0) barrier_arrive(stages.empty + behind);
    behind = cursor.stage;
    cursor.advance();
  }
  products_done<0>(sums);
  if (is_first && behind >= 0) barrier_arrive(stages.empty + behind);
}

// The same with W in f8_e4m3: a thread fetches the pairs that its registers of A hold, from pieces of 16
// bytes that TMA has permuted by the row's number.
template <typename T, int kTokens>
__device__ inline void multiply_f8(int count,
                                   const Stages<true, kTokens>& stages,
                                   Cursor<Stages<true, kTokens>::kCount>& cursor,
                                   float (&sums)[kTokens / 2]) {
  constexpr int kProducts = Stages<true, kTokens>::kColumns / 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16 + lane / 4;  // and the eighth behind it
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    const std::byte* codes = stages.weights(cursor.stage, 0) + row * kRowBytes + lane % 4 * 2;
    uint32_t a[kProducts][4];
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      const std::byte* piece = codes + (k ^ (row % 8)) * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[k][i] = *reinterpret_cast<const uint16_t*>(piece + i % 2 * 8 * kRowBytes + i / 2 * 8);
    }
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
#pragma unroll
      for (uint32_t& pair : a[k]) {
        pair = widen_pair(T(), pair);
        asm volatile("" : "+r"(pair));  // written before the products begin
      }
    }
    products_begin(sums);
#pragma unroll
    for (int k = 0; k < kProducts; ++k)
      multiply_rows(T(), sums, a[k], swizzled_tile(stages.x(cursor.stage, k / 4) + k % 4 * 32));
    products_issued();
    products_done<0>(sums);
    if (lane == 0) barrier_arrive(stages.empty + cursor.stage);
    cursor.advance();
  }
}

// The same for few rows of x, by products of single warps, which take both operands from registers: columns
// may enter a product in any order that x follows too, so that a thread gets four codes of W, and four
// elements of x, at a time. No warp waits for another's products.
template <typename T, int kTokens>
__device__ inline void multiply_few_f8(int count,
                                       const Stages<true, kTokens>& stages,
                                       Cursor<Stages<true, kTokens>::kCount>& cursor,
                                       float (&sums)[kTokens / 2]) {
  constexpr int kPieces = kRowBytes / 16;  // of a stage's columns, sixteen each
  constexpr int kTiles = kTokens / 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
  // Of the four 8 × 16 matrices of codes that are loaded at once: rows, the eight behind them, and of the
  // next piece the same.
  const int row = first_row + lane % 8 + lane / 8 % 2 * 8;
  float odd[kTiles][4] = {};  // sums of every other piece: products wait for those into the same sums
  float even[kTiles][4] = {};
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    const auto* codes = reinterpret_cast<const uint4*>(stages.weights(cursor.stage, 0)) + row * kPieces;
    uint32_t loaded[kPieces / 2][4];
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i)
      load_matrices(loaded[i], codes + ((2 * i + lane / 16) ^ (lane % 8)));
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint32_t low = loaded[piece / 2][piece % 2 * 2];
      const uint32_t high = loaded[piece / 2][piece % 2 * 2 + 1];
      const uint32_t a[] = {widen_pair<0>(T(), low),
                            widen_pair<0>(T(), high),
                            widen_pair<1>(T(), low),
                            widen_pair<1>(T(), high)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const std::byte* token = stages.x(cursor.stage, piece / 4) + (tile * 8 + lane / 4) * kRowBytes;
        const int at = (piece % 4 * 2 + lane % 4 / 2) ^ (lane / 4);
        const uint2 b = *reinterpret_cast<const uint2*>(token + at * 16 + lane % 2 * 8);
        mma_16x8x16(T(), piece % 2 == 0 ? even[tile] : odd[tile], a[0], a[1], a[2], a[3], b.x, b.y);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(stages.empty + cursor.stage);
    cursor.advance();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile * 4 + i] += even[tile][i] + odd[tile][i];
  }
}

// Either way.
template <typename T, int kTokens>
__device__ inline void add_products(T,
                                    int count,
                                    const Stages<true, kTokens>& stages,
                                    Cursor<Stages<true, kTokens>::kCount>& cursor,
                                    float (&sums)[kTokens / 2]) {
  if constexpr (kTokens <= kFewTokens) {
    multiply_few_f8<T>(count, stages, cursor, sums);
  } else {
    multiply_f8<T>(count, stages, cursor, sums);
  }
}

}  // namespace llm_dist::kernels::streamed
