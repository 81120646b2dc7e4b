// What becomes of a strip's sums (streamed_products.cuh): scale, bias and gate where there are any, then
// stores. Of more than 32 tokens: tiled_output.cuh.
//
// Behind a block's last products it has nothing more to read, and few warps run, so that each instruction
// takes as long as it takes. Therefore what a strip's end needs is fetched before its products, what is the
// same for all sums is found out once, and the code is short: instructions come from memory, too.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/peer_terms.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace llm_dist::kernels::streamed {

// y [token, column]; a column is a row of W, or one of the gate and one that it lets through. A thread has
// two rows of the strip, eight apart and in a gated strip such a pair, and two tokens of every eight
// (device/wgmma.cuh).
template <typename T, typename S>
class StripOutput {
 public:
  static constexpr int kGroups = S::kTokens / 8;
  static constexpr int kAtOnce = 1;  // groups of eight tokens

  // `first_row`: so many rows come before the strip's. `scales`: of W's rows, or none. `terms`: where y goes
  // in the place of `y`, if anywhere.
  __device__ StripOutput(const StreamArgs& args,
                         const float* scales,
                         const T* bias,
                         void* y,
                         const device::PeerTerms& terms,
                         const S& /*stages*/,
                         int first_row)
      : args_(args), y_(y), terms_(terms), has_bias_(bias != nullptr) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int pair_of_rows = (first_row / 16 + static_cast<int>(threadIdx.x) / kWarpSize) * kGroupRows;
    const int row_in_group = lane / 4;
    odd_ = row_in_group % 2 == 1;
    token_ = lane % 4 * 2;
    const int rows[2] = {(args.gated ? pair_of_rows : 2 * pair_of_rows) + row_in_group,
                         args.gated ? args.columns + pair_of_rows + row_in_group
                                    : 2 * pair_of_rows + kGroupRows + row_in_group};
    column_ = rows[0] - odd_;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int column = args.gated ? rows[0] : rows[h];
      inside_[h] = std::clamp(args.columns - (column - odd_), 0, 2);
      const bool is_there = column < args.columns;
      if (scales != nullptr && is_there) scales_[h] = scales[rows[h]];
      if (has_bias_ && is_there) bias_[h] = bias[rows[h]];
    }
    if constexpr (S::kF8) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group)
        of_x_[group] = *reinterpret_cast<const float2*>(args.x_scales + 8 * group + token_);
    }
    if (terms.size > 0) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const int token = 8 * group + token_ + odd_;
        if (token < args.rows)
          slots_ |= static_cast<uint32_t>((load_relaxed(terms.calls + token) + 1) % 2) << group;
      }
    }
  }

  // for_each(put): calls put(i, step, sums) with this thread's sums of groups i, i + step, .. of eight
  // tokens, kAtOnce of them: for all that this warp stores.
  template <typename ForEach>
  __device__ void store(ForEach&& for_each) const {
    if (args_.gated) {
      if (args_.floats) return store_as<true, float>(for_each);
      return store_as<true, T>(for_each);
    }
    if (args_.floats) return store_as<false, float>(for_each);
    if (terms_.size > 0) return store_as<false, T, true>(for_each);
    store_as<false, T>(for_each);
  }

 private:
  __device__ float2 finished(int h, int group, float2 sums) const {
    float2 factors = {scales_[h], scales_[h]};
    if constexpr (S::kF8) factors = {scales_[h] * of_x_[group].x, scales_[h] * of_x_[group].y};
    const float offset = has_bias_ ? to_float_dev(bias_[h]) : 0.0f;
    return make_float2(sums.x * factors.x + offset, sums.y * factors.y + offset);
  }
  // From two tokens of a column to two columns of a token: lanes of neighbouring columns swap one value.
  __device__ float2 turned(float2 of_tokens) const {
    const float got = __shfl_xor_sync(0xffffffffu, odd_ ? of_tokens.x : of_tokens.y, 4);
    return odd_ ? make_float2(got, of_tokens.y) : make_float2(of_tokens.x, got);
  }
  // `inside`: how many of the two columns y has.
  __device__ static void put(float* to, int inside, float2 values) {
    if (inside == 2) *reinterpret_cast<float2*>(to) = values;
    if (inside == 1) *to = values.x;
  }
  __device__ static void put(T* to, int inside, float2 values) {
    if (inside == 2) *reinterpret_cast<uint32_t*>(to) = pack_pair(T(), values.x, values.y);
    if (inside == 1) *to = from_float_dev<T>(values.x);
  }
  // To the ranks.
  __device__ void send(int group, int token, int column, float2 values) const {
    send_term(terms_, slots_ >> group & 1, token, column, pack_pair(T(), values.x, values.y));
  }
  template <bool kGated, typename Out, bool kSends = false, typename ForEach>
  __device__ void store_as(ForEach&& for_each) const {
    const int first_token = token_ + odd_;
    for_each([&](int group, int, const float4(&sums)[kAtOnce]) {
      const float2 low = finished(0, group, make_float2(sums[0].x, sums[0].y));
      const float2 high = finished(1, group, make_float2(sums[0].z, sums[0].w));
      const int token = 8 * group + first_token;
      const bool is_token = token < args_.rows;
      Out* to = static_cast<Out*>(y_) + token * args_.y_stride + column_;
      if constexpr (kGated) {
        const float2 values = turned(make_float2(silu_approx(low.x) * high.x, silu_approx(low.y) * high.y));
        if (is_token) put(to, inside_[0], values);
      } else {
        const float2 values[2] = {turned(low), turned(high)};
        if (!is_token) return;
        if constexpr (kSends) {
          if (inside_[0] > 0) send(group, token, column_, values[0]);
          if (inside_[1] > 0) send(group, token, column_ + kGroupRows, values[1]);
        } else {
          put(to, inside_[0], values[0]);
          put(to + kGroupRows, inside_[1], values[1]);
        }
      }
    });
  }

  const StreamArgs& args_;
  void* y_;
  const device::PeerTerms& terms_;
  bool has_bias_;
  int odd_;     // of its two columns of y this thread computes the second
  int token_;   // the first of a group's
  int column_;  // of y, where the lower row's pair begins
  int inside_[2];
  uint32_t slots_ = 0;  // of the sums of its tokens, a bit a group
  float scales_[2] = {1, 1};
  T bias_[2] = {};
  float2 of_x_[S::kF8 ? kGroups : 1];
};

}  // namespace llm_dist::kernels::streamed
