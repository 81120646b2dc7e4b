// What becomes of a strip's sums (streamed_products.cuh): scale, bias and gate where there are any, then
// stores.
#pragma once

#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace llm_dist::kernels::streamed {

// y [token, column]; a column is a row of W, or one of the gate and one that it lets through.
template <typename T>
struct Output {
  const StreamArgs& args;
  const float* scales;  // of W's rows, or none
  const T* bias;
  void* y;

  // The sums of a token (even) and the next with their scales and the bias of their row of W.
  __device__ float2 finished(int row, int token, float2 sums) const {
    const float scale = scales == nullptr ? 1.0f : scales[row];
    const float offset = bias == nullptr ? 0.0f : to_float_dev(bias[row]);
    float2 of_x{1, 1};
    if (args.x_scales != nullptr) of_x = *reinterpret_cast<const float2*>(args.x_scales + token);
    return make_float2(sums.x * (scale * of_x.x) + offset, sums.y * (scale * of_x.y) + offset);
  }
  // `low`, `high`: of columns `column` (even) and the next.
  __device__ void store(int token, int column, float low, float high) const {
    if (token >= args.rows || column >= args.columns) return;
    const bool both = column + 1 < args.columns;
    const int64_t at = token * args.y_stride + column;
    if (args.floats) {
      float* to = static_cast<float*>(y) + at;
      if (both) {
        *reinterpret_cast<float2*>(to) = make_float2(low, high);
      } else {
        *to = low;
      }
    } else {
      T* to = static_cast<T*>(y) + at;
      if (both) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair(T(), low, high);
      } else {
        *to = from_float_dev<T>(low);
      }
    }
  }
  // The values of `token` and the next in `column`, from a warp's lanes as wgmma lays them out: lanes of
  // neighbouring columns swap one, so that each has two columns of a token.
  __device__ void store_pair(int token, int column, float2 values) const {
    const int odd = column % 2;
    const float got = __shfl_xor_sync(0xffffffffu, odd ? values.x : values.y, 4);
    store(token + odd, column - odd, odd ? got : values.x, odd ? values.y : got);
  }

  // Of kTokens tokens: what store_unit() takes at a time.
  __device__ int units(int tokens) const { return args.gated ? tokens / 8 : tokens / 4; }
  // Of a strip, whose rows come before it number `first_row`. pair_of(p): the sums of a row of W and two
  // tokens; a thread has two rows of eight tokens after eight.
  template <typename PairOf>
  __device__ void store_unit(int first_row, int unit, PairOf&& pair_of) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int group = (first_row / 16 + static_cast<int>(threadIdx.x) / kWarpSize) * kGroupRows;
    const int token = (args.gated ? unit : unit / 2) * 8 + lane % 4 * 2;
    if (args.gated) {
      const int column = group + lane / 4;
      const bool inside = column < args.columns;
      const float2 gate = finished(inside ? column : 0, token, pair_of(2 * unit));
      const float2 up = finished(inside ? args.columns + column : 0, token, pair_of(2 * unit + 1));
      return store_pair(token, column, make_float2(silu(gate.x) * up.x, silu(gate.y) * up.y));
    }
    const int column = 2 * group + unit % 2 * 8 + lane / 4;
    store_pair(token, column, finished(column < args.columns ? column : 0, token, pair_of(unit)));
  }
  // All of it, from the sums of one block.
  template <int kSums>
  __device__ void store_strip(int first_row, const float (&sums)[kSums]) const {
    constexpr int kPairs = kSums / 2;
    const int count = units(2 * kSums);
#pragma unroll
    for (int unit = 0; unit < kPairs; ++unit) {
      if (unit == count) return;
      store_unit(first_row, unit, [&](int p) { return make_float2(sums[2 * p], sums[2 * p + 1]); });
    }
  }
};

}  // namespace llm_dist::kernels::streamed
