// What becomes of a strip's sums (streamed_output.cuh) of more than 32 tokens.
//
// As sums lie, a store of a warp would be pieces of 16 bytes, and what stores take is a time for each piece.
// So a warp's columns of 32 tokens go through shared memory, from which a thread stores 16 bytes of a token.
// And four groups of eight tokens go together, so that few instructions wait for the one before them.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/peer_terms.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/streamed_output.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/matmul_shape.h"

namespace llm_dist::kernels::streamed {

// y [token, column]; a column is a row of W, or one of the gate and one that it lets through; columns and
// their stride are multiples of eight, unless y is in floats. A thread has the sums of two rows of the strip,
// eight apart and in a gated strip such a pair, with two tokens of every eight (device/wgmma.cuh).
template <typename T, typename S>
class TiledOutput {
 public:
  static constexpr int kAtOnce = 4;
  static_assert(S::kTokens / 8 % kAtOnce == 0);
  static_assert(kMostSentRows <= kMostRowsStoredAsTheyLie, "this stores rows that are to be sent");

  // As StripOutput's; `terms` are none.
  __device__ TiledOutput(const StreamArgs& args,
                         const float* scales,
                         const T* bias,
                         void* y,
                         const device::PeerTerms& /*terms*/,
                         const S& stages,
                         int first_row)
      : args_(args),
        y_(y),
        tile_(shared_address(stages.tile()) + static_cast<int>(threadIdx.x) / kWarpSize * kTileBytes),
        has_bias_(bias != nullptr) {
    const int pair_of_rows = (first_row / 16 + static_cast<int>(threadIdx.x) / kWarpSize) * kGroupRows;
    first_column_ = args.gated ? pair_of_rows : 2 * pair_of_rows;
    const int row = first_column_ + lane() / 4;
    const int rows[2] = {row, row + (args.gated ? args.columns : kGroupRows)};
    const int ends[2] = {args.columns, (args.gated ? 2 : 1) * args.columns};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (rows[h] >= ends[h]) continue;
      if (has_bias_) bias_[h] = bias[rows[h]];
      if constexpr (S::kF8) scales_[h] = scales[rows[h]];
    }
    if constexpr (S::kF8) {
#pragma unroll
      for (int i = 0; i < kHeldPairs; ++i)
        of_x_[i] = reinterpret_cast<const float2*>(args.x_scales)[i * kWarpSize + lane()];
    }
  }

  template <typename ForEach>
  __device__ void store(ForEach&& for_each) const {
    if (args_.gated)
      return for_each([&](int group, int step, const auto& sums) { store_gated(group, step, sums); });
    if (args_.floats)
      return for_each([&](int group, int step, const auto& sums) { store_floats(group, step, sums); });
    for_each([&](int group, int step, const auto& sums) { store_plain(group, step, sums); });
  }

 private:
  static constexpr int kPieceBytes = 16;  // of a tile: eight columns of a token
  static constexpr int kTileBytes = S::kTileBytes;
  static_assert(kTileBytes == 8 * kAtOnce * 2 * kPieceBytes);

  static constexpr int kHeldPairs = S::kF8 ? static_cast<int>(ceil_div(S::kTokens, 2 * kWarpSize)) : 0;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarpSize; }
  // Of this thread's two tokens of a group. Which group that will be is not known before, and registers for
  // all of them would be too many: each lane holds two tokens' of every 64.
  __device__ float2 scales_of_x(int group) const {
    if constexpr (S::kF8) {
      constexpr int kGroupPairs = 4;
      constexpr int kHeldGroups = kWarpSize / kGroupPairs;
      float2 held = of_x_[0];
      if (kHeldPairs > 1 && group >= kHeldGroups) held = of_x_[kHeldPairs - 1];
      const int from = group % kHeldGroups * kGroupPairs + lane() % kGroupPairs;
      return make_float2(__shfl_sync(0xffffffffu, held.x, from), __shfl_sync(0xffffffffu, held.y, from));
    }
    return make_float2(1, 1);
  }
  // Of the lower or the upper row, with scales_of_x().
  __device__ float2 finished(int row, float2 of_x, float first, float second) const {
    if constexpr (S::kF8) {
      first *= scales_[row] * of_x.x;
      second *= scales_[row] * of_x.y;
    }
    if (!has_bias_) return make_float2(first, second);
    const float offset = to_float_dev(bias_[row]);
    return make_float2(first + offset, second + offset);
  }
  // From a token in the place of a row on, 16 bytes to y, where they are there.
  __device__ void store_piece(int piece, int token, int column) const {
    const float4 raw = load_shared(tile_ + piece * kPieceBytes);
    if (token < args_.rows && column < args_.columns)
      *reinterpret_cast<float4*>(static_cast<T*>(y_) + token * args_.y_stride + column) = raw;
  }
  // Of a tile's tokens the lower rows' eight columns and the upper rows' lie side by side, in every second
  // four of eight tokens the other way round: so they are in different banks.
  __device__ void store_plain(int group, int step, const float4 (&sums)[kAtOnce]) const {
    const int token = lane() % 8;  // whose piece this lane names to store_matrices_transposed()
    const int half = lane() / 8 % 2;
    const uint32_t row = tile_ + ((lane() / 16 * 8 + token) * 2 + (half ^ token / 4)) * kPieceBytes;
    __syncwarp();  // the last ones have been read
#pragma unroll
    for (int i = 0; i < kAtOnce; i += 2) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 of_x = scales_of_x(group + (i + j) * step);
        const float2 low = finished(0, of_x, sums[i + j].x, sums[i + j].y);
        const float2 high = finished(1, of_x, sums[i + j].z, sums[i + j].w);
        words[2 * j] = pack_pair(T(), low.x, low.y);
        words[2 * j + 1] = pack_pair(T(), high.x, high.y);
      }
      store_matrices_transposed(row + i * 16 * kPieceBytes, words);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int piece = lane() + i * kWarpSize;
      const int stored = piece / 2 % 8;
      store_piece(piece,
                  8 * (group + piece / 16 * step) + stored,
                  first_column_ + (piece % 2 ^ stored / 4) * kGroupRows);
    }
  }
  __device__ void store_gated(int group, int step, const float4 (&sums)[kAtOnce]) const {
    uint32_t words[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float2 of_x = scales_of_x(group + i * step);
      const float2 gate = finished(0, of_x, sums[i].x, sums[i].y);
      const float2 up = finished(1, of_x, sums[i].z, sums[i].w);
      words[i] = pack_pair(T(), silu_approx(gate.x) * up.x, silu_approx(gate.y) * up.y);
    }
    __syncwarp();
    store_matrices_transposed(tile_ + lane() * kPieceBytes, words);
    __syncwarp();
    store_piece(lane(), 8 * (group + lane() / 8 * step) + lane() % 8, first_column_);
  }
  __device__ void store_floats(int group, int step, const float4 (&sums)[kAtOnce]) const {
    const int column = first_column_ + lane() / 4;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int token = 8 * (group + i * step) + lane() % 4 * 2;
      float* to = static_cast<float*>(y_) + token * args_.y_stride + column;
      const float2 of_x = scales_of_x(group + i * step);
      const float2 of_rows[2] = {finished(0, of_x, sums[i].x, sums[i].y),
                                 finished(1, of_x, sums[i].z, sums[i].w)};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (column + h * kGroupRows >= args_.columns) continue;
        if (token < args_.rows) to[h * kGroupRows] = of_rows[h].x;
        if (token + 1 < args_.rows) to[args_.y_stride + h * kGroupRows] = of_rows[h].y;
      }
    }
  }

  const StreamArgs& args_;
  void* y_;
  uint32_t tile_;  // a shared address: this warp's
  bool has_bias_;
  int first_column_;  // of y, of this warp's
  T bias_[2] = {};
  float scales_[2] = {1, 1};  // of W's rows
  float2 of_x_[std::max(1, kHeldPairs)];
};

template <typename T, typename S>
using OutputOf = std::conditional_t<S::kTiled, TiledOutput<T, S>, StripOutput<T, S>>;

}  // namespace llm_dist::kernels::streamed
