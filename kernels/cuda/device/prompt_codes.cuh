// How a warpgroup of prompt_linear.cu multiplies codes of f8_e4m3 that stand in the stages
// (prompt_stages.cuh), and stores the results, codes or not.
#pragma once

#include "kernels/cuda/device/prompt_products.cuh"
#include "kernels/cuda/device/row_codes.cuh"

namespace llm_dist::kernels::prompt_products {

// What a warpgroup does with 64 rows of a block's tiles of codes (prompt_products.cuh: of 16-bit elements).
// Products of 8-bit floats keep few bits of their sums, 13 behind the leading one of the largest that is
// added up, so those of a stage are added in float, half a tile at a time, as registers have no room for
// more: meanwhile the other warpgroup's products are under way. Nor have they for what is kept of a tile: it
// goes to shared memory at once, which has room for all of it.
template <typename T, typename Kind, typename C>
struct CodeMultiplier : TileReader<Kind, C> {
  using Base = TileReader<Kind, C>;
  using Base::cursor, Base::group, Base::leave, Base::memory, Base::thread, Base::tile, Base::walk;
  static constexpr int kHalfSums = Kind::kSums / 2;

  // A lane has two rows of 64, this one and the eighth behind it: of all rows of x, behind the last the last.
  __device__ int row_of_x(const Tile& of, int next) const {
    const int row = of.share * walk.args.rows + of.row + group * kGroupRows + row_of_lane() + next * 8;
    return min(row, walk.args.all_rows() - 1);
  }
  __device__ int row_of_lane() const { return thread / kWarpSize * 16 + thread % kWarpSize / 4; }

  __device__ void multiply(float (&sums)[Kind::kSums], int next_tile) {
    const int steps = walk.args.steps;
    const GroupScales groups(walk.args, row_of_x(tile, 0), row_of_x(tile, 1));
    float2 next_group = groups.of(0);
#pragma unroll
    for (float& sum : sums) sum = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      const float2 group_scales = next_group;
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      const uint64_t x = swizzled_tile(memory.x(cursor.stage, group));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint64_t w = swizzled_tile(memory.w(cursor.stage) + half * Kind::kHalfRows * kRowBytes);
        float products[kHalfSums];
        products_begin(products);
        multiply_codes<false>(products, x, w);
#pragma unroll
        for (int k = 2; k < kRowBytes / 16; k += 2)  // that unit is theirs
          multiply_codes<true>(products, x + k, w + k);
        products_issued();
        if (step == 0 && half == 0) tile = walk.tile_or_last(next_tile);
        if (half == 0) next_group = groups.of(min(step + 1, steps - 1));
        products_done<0>(products);
        if (half == 1) leave(cursor.stage);
#pragma unroll
        for (int i = 0; i < kHalfSums; ++i) {
          float& sum = sums[half * kHalfSums + i];
          if constexpr (Kind::kTakesGroups) {
            sum += products[i] * (i % 4 < 2 ? group_scales.x : group_scales.y);
          } else {
            sum += products[i];
          }
        }
      }
      cursor.advance();
    }
  }
  __device__ void keep(float (&sums)[Kind::kSums], const CUtensorMap& y, const Tile& of) const {
    scale(sums, of);
    if (thread == 0) stores_read<0>();
    barrier_of_group(group);
    if constexpr (Kind::kGivesCodes) {
      put_codes(sums, of);
    } else {
      put_sums(sums);
    }
    release_to_products();
    barrier_of_group(group);
    if (thread == 0) {
#pragma unroll
      for (int box = 0; box < Kind::kOutBoxes; ++box) {
        const int column = of.column + box * Kind::kBoxColumns;
        store_box(y, column, of.row + group * kGroupRows, memory.out(group, box));
      }
      stores_issued();
    }
    __syncwarp();
  }
  __device__ void store_rest() const {
    if (thread == 0) stores_done();
  }

 private:
  static constexpr int kPieces = Kind::kColumns / 8;       // of y's columns, eight to each
  static constexpr int kHalfPieces = Kind::kHalfRows / 8;  // of a half of W's rows

  // Of a lane's two rows of x, in one group of its columns. Past the first-level cache, here and below, where
  // the scales of an earlier product's rows may stand.
  struct GroupScales {
    const float* first;
    const float* second;
    int stride;
    __device__ GroupScales(const TileArgs& args, int row, int next_row)
        : first(args.x_scales + row), second(args.x_scales + next_row), stride(args.all_rows()) {}
    __device__ float2 of(int group) const {
      if constexpr (!Kind::kTakesGroups) return {};
      return {__ldcg(first + group * stride), __ldcg(second + group * stride)};
    }
  };

  // Sums become products of rows, gated where they are to be: in the places of the gate then.
  __device__ void scale(float (&sums)[Kind::kSums], const Tile& of) const {
    float2 x = {1, 1};
    if constexpr (!Kind::kTakesGroups)
      x = {__ldcg(walk.args.x_scales + row_of_x(of, 0)), __ldcg(walk.args.x_scales + row_of_x(of, 1))};
    const int column = of.column + 2 * (thread % 4);
    // Two neighbouring columns of eight, in two rows.
    auto scale_piece = [&](int piece) {
      const int at = column + piece / kHalfPieces * walk.args.half_stride + piece % kHalfPieces * 8;
      const auto* scales =
          reinterpret_cast<const float2*>(walk.args.w_scales + min(at, walk.args.w_rows - 2));
      const float2 w = __ldg(scales);
      sums[4 * piece] *= x.x * w.x;
      sums[4 * piece + 1] *= x.x * w.y;
      sums[4 * piece + 2] *= x.y * w.x;
      sums[4 * piece + 3] *= x.y * w.y;
    };
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      scale_piece(piece);
      if constexpr (!Kind::kGates) continue;
      scale_piece(piece + kHalfPieces);
#pragma unroll
      for (int i = 4 * piece; i < 4 * piece + 4; ++i)
        sums[i] = silu_approx(sums[i]) * sums[i + 4 * kHalfPieces];
    }
  }
  __device__ void put_sums(const float (&values)[Kind::kSums]) const {
    constexpr int kBoxPieces = kRowBytes / 16;
#pragma unroll
    for (int piece = 0; piece < kPieces; piece += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        pairs[i] = pack_pair(T(), values[4 * piece + 2 * i], values[4 * piece + 2 * i + 1]);
      this->put(memory.out(group, piece / kBoxPieces), piece % kBoxPieces, pairs);
    }
  }
  // As codes: a tile's columns are a group. Four lanes have a row, of eight columns two each: they trade
  // those of every second eight with their neighbours, for four to a lane.
  __device__ void put_codes(const float (&values)[Kind::kSums], const Tile& of) const {
    const bool odd = thread % 2 == 1;
    std::byte* box = memory.out(group, 0);
#pragma unroll
    for (int next = 0; next < 2; ++next) {  // of the lane's rows
      CodeScale of_group;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        const float* at = values + 4 * piece + 2 * next;
        of_group.look_at(at[0]);
        of_group.look_at(at[1]);
      }
      for (int lanes = 1; lanes < 4; lanes *= 2)
        of_group.look_at(__shfl_xor_sync(~0u, of_group.largest, lanes));
      const float factor = of_group.factor();
      auto codes_of = [&](int piece) {
        const float* at = values + 4 * piece + 2 * next;
        return static_cast<uint32_t>(pair_of_codes(at[0] * factor, at[1] * factor));
      };
      const int row = row_of_lane() + next * 8;
#pragma unroll
      for (int piece = 0; piece < kPieces; piece += 2) {
        const uint32_t first = codes_of(piece);
        const uint32_t second = codes_of(piece + 1);
        const uint32_t given = __shfl_xor_sync(~0u, odd ? first : second, 1);
        const uint32_t four = odd ? given | second << 16 : first | given << 16;
        const int in_sixteen = odd ? 8 + 2 * (thread % 4 - 1) : 2 * (thread % 4);
        std::byte* to = box + row * kRowBytes + (piece / 2 ^ row % 8) * 16 + in_sixteen;
        *reinterpret_cast<uint32_t*>(to) = four;
      }
      const int out_row = of.row + group * kGroupRows + row;
      if (thread % 4 == 0 && out_row < walk.args.rows)
        walk.args
            .y_scales[of.column / kCodeGroup * walk.args.all_rows() + of.share * walk.args.rows + out_row] =
            of_group.scale();
    }
  }
};

}  // namespace llm_dist::kernels::prompt_products
