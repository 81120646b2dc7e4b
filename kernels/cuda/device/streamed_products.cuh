// The products of a strip of W with all rows of x (streamed_tiles.cuh), sums in registers: by a warpgroup,
// whose columns the rows of x are, so that few of them cost little.
//
// W in f8_e4m3 is multiplied as it is, by x in 8 bits, one part or several (quantize_rows.h): each part's
// rows are columns of the product of their own.
#pragma once

#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/quantize_rows.h"

namespace llm_dist::kernels::streamed {

// Where a block is in the stages that it is brought, `left` of them from there on.
template <typename S>
struct Reading : Cursor<S::kCount> {
  int left;
  __device__ explicit Reading(int count) : left(count) {}
  __device__ void advance() {
    Cursor<S::kCount>::advance();
    --left;
  }
  // Whether the stage in front of this one is filled again. Of the others nobody says that they are empty:
  // who shares x with this block waits for none of that any more, and the word could come when it has ended.
  __device__ bool refills_last() const { return left >= S::kCount; }
};

// add_products(T, count, stages, reading, sums): adds the next `count` stages of a strip to sums [64 rows of
// W × kTokens] of a warpgroup, laid out as device/wgmma.cuh says, and says of each that it is empty.
template <typename T, typename S>
  requires(!S::kF8)
__device__ inline void add_products(
    T, int count, const S& stages, Reading<S>& reading, float (&sums)[S::kTokens / 2]) {
  const int group = S::kWarpgroups == 1 ? 0 : warp_number() / (kGroupThreads / kWarpSize);
  const bool is_first = static_cast<int>(threadIdx.x) == group * kGroupThreads;
  int behind = -1;  // a stage that products still read
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    barrier_wait(stages.full + reading.stage, reading.parity);
    products_begin(sums);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const std::byte* weights = stages.weights(reading.stage, box) + group * kProductRows * kRowBytes;
      const std::byte* x = stages.x(reading.stage, box);
#pragma unroll
      for (int k = 0; k < kRowBytes; k += 32)
        multiply_tiles(T(), sums, swizzled_tile(weights + k), swizzled_tile(x + k));
    }
    products_issued();
    products_done<1>(sums);
    if (is_first && behind >= 0 && reading.refills_last()) stages.release(behind);
    behind = reading.stage;
    reading.advance();
  }
  products_done<0>(sums);
  if (is_first && behind >= 0 && reading.refills_last()) stages.release(behind);
}

// The same with W in f8_e4m3. Products of 8-bit floats keep few bits of their sums, 13 behind the leading one
// of the largest that is added up, so those of a stage are added in float.
template <typename T, typename S>
  requires(S::kF8)
__device__ inline void add_products(
    T, int count, const S& stages, Reading<S>& reading, float (&sums)[S::kTokens / 2]) {
  constexpr int kParts = S::kParts;
  constexpr int kTokens = S::kTokens;
  const int group = S::kWarpgroups == 1 ? 0 : warp_number() / (kGroupThreads / kWarpSize);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    barrier_wait(stages.full + reading.stage, reading.parity);
    float products[kParts * kTokens / 2];
    products_begin(products);
#pragma unroll
    for (int at = 0; at < S::kBoxes * kRowBytes; at += 32) {
      const std::byte* weights =
          stages.weights(reading.stage, at / kRowBytes) + group * kProductRows * kRowBytes;
      const std::byte* x = stages.x(reading.stage, at / kRowBytes);
      const int k = at % kRowBytes;
      if (at == 0) {
        multiply_codes<false>(products, swizzled_tile(weights), swizzled_tile(x));
      } else {
        multiply_codes<true>(products, swizzled_tile(weights + k), swizzled_tile(x + k));
      }
    }
    products_issued();
    products_done<0>(products);
    const int read = reading.stage;
    reading.advance();
    if (threadIdx.x % kWarpSize == 0 && reading.refills_last()) stages.release(read);
#pragma unroll
    for (int p = 0; p < kTokens / 2; ++p) {
      float factor = 1;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        sums[p] += products[part * kTokens / 2 + p] * factor;
        factor /= kPartLift;
      }
    }
  }
}

}  // namespace llm_dist::kernels::streamed
