// The kinds of tiles that prompt_linear.cu multiplies.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace llm_dist::kernels::prompt_products {

constexpr int kMostWRows = 256;  // of a tile
constexpr int kRowBytes = 128;   // of a stage, TMA's widest swizzle

// Of what elements a product's operands are.
enum class Elements : uint8_t {
  kBits16,
  kCodes,         // x and W are f8_e4m3, with a scale for each row
  kGroupedCodes,  // the same, and what is between a gated product and the one that reads it has a scale for
                  // each group of 128 columns: y of the gated one, x of the other
};

// What a tile is made of, rows of W, and what becomes of its sums, columns of y.
template <bool kGates_, int kWRows_, Elements kElements>
struct TileKind {
  static constexpr bool kGates = kGates_;
  static constexpr bool kCodes = kElements != Elements::kBits16;
  static constexpr bool kGivesCodes = kElements == Elements::kGroupedCodes && kGates;
  static constexpr bool kTakesGroups = kElements == Elements::kGroupedCodes && !kGates;
  static constexpr int kWRows = kWRows_;
  static constexpr int kHalfRows = kWRows / 2;
  static constexpr int kSums = kHalfRows;  // of a thread: half of either half's
  static constexpr int kColumns = kGates ? kHalfRows : kWRows;
  static constexpr int kTurns = kWRows / 64;  // parts in which a tile of y leaves
  static constexpr int kStageColumns = kCodes ? kRowBytes : kRowBytes / 2;     // of x and W
  static constexpr int kBoxColumns = kGivesCodes ? kRowBytes : kRowBytes / 2;  // of y, that leave together
  // Boxes of y, for each warpgroup, that have room in shared memory: of codes a whole tile's.
  static constexpr int kOutBoxes = kCodes ? kColumns / kBoxColumns : 2;
  static constexpr int kStages = kOutBoxes > 3 ? 3 : 4;
  static_assert(kWRows <= kMostWRows && kColumns % kBoxColumns == 0);
};
template <Elements kElements>
using GatedOf = TileKind<true, 256, kElements>;
template <Elements kElements>
using PlainOf = TileKind<false, 256, kElements>;
template <Elements kElements>
using NarrowOf = TileKind<false, 192, kElements>;
static_assert(GatedOf<Elements::kGroupedCodes>::kColumns == kCodeGroup);
static_assert(PlainOf<Elements::kGroupedCodes>::kStageColumns == kCodeGroup);

}  // namespace llm_dist::kernels::prompt_products
