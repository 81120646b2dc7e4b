// The products of a strip of W with all rows of x (streamed_tiles.cuh), sums in registers: by a warpgroup,
// whose columns the rows of x are, so that few of them cost little.
//
// W in f8_e4m3 is multiplied as it is, by x in parts of 8 bits (quantize_rows.h): each part's rows are
// columns of the product of their own.
#pragma once

#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/quantize_rows.h"

namespace llm_dist::kernels::streamed {

// add_products(T, count, stages, cursor, sums): adds the next `count` stages of a strip to sums [64 rows of W
// × kTokens] of a warpgroup, laid out as device/wgmma.cuh says, and says of each that it is empty.
template <typename T, int kTokens, int kWarpgroups, int kSharing>
__device__ inline void add_products(T,
                                    int count,
                                    const Stages<0, kTokens, kWarpgroups, kSharing>& stages,
                                    Cursor<Stages<0, kTokens, kWarpgroups, kSharing>::kCount>& cursor,
                                    float (&sums)[kTokens / 2]) {
  using S = Stages<0, kTokens, kWarpgroups, kSharing>;
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
    if (is_first && behind >= 0) stages.release(behind);
    behind = cursor.stage;
    cursor.advance();
  }
  products_done<0>(sums);
  if (is_first && behind >= 0) stages.release(behind);
}

// The same with W in f8_e4m3. Products of 8-bit floats keep few bits of their sums, 13 behind the leading one
// of the largest that is added up, so those of a stage are added in float.
template <typename T, int kParts, int kTokens, int kWarpgroups, int kSharing>
__device__ inline void add_products(T,
                                    int count,
                                    const Stages<kParts, kTokens, kWarpgroups, kSharing>& stages,
                                    Cursor<Stages<kParts, kTokens, kWarpgroups, kSharing>::kCount>& cursor,
                                    float (&sums)[kTokens / 2]) {
  static_assert(kParts > 0);
  using S = Stages<kParts, kTokens, kWarpgroups, kSharing>;
  const int group = kWarpgroups == 1 ? 0 : warp_number() / (kGroupThreads / kWarpSize);
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    float products[kParts * kTokens / 2];
    products_begin(products);
#pragma unroll
    for (int at = 0; at < S::kBoxes * kRowBytes; at += 32) {
      const std::byte* weights =
          stages.weights(cursor.stage, at / kRowBytes) + group * kProductRows * kRowBytes;
      const std::byte* x = stages.x(cursor.stage, at / kRowBytes);
      const int k = at % kRowBytes;
      if (at == 0) {
        multiply_codes<false>(products, swizzled_tile(weights), swizzled_tile(x));
      } else {
        multiply_codes<true>(products, swizzled_tile(weights + k), swizzled_tile(x + k));
      }
    }
    products_issued();
    products_done<0>(products);
    if (threadIdx.x % kWarpSize == 0) stages.release(cursor.stage);
    cursor.advance();
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
