// Weight: what a linear layer multiplies by. Not a tensor: block-quantized and scaled weights have parts with
// layouts of their own and shard only at legal boundaries, and a linear layer picks its kernel by scheme.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "src/base/dtype.h"
#include "src/base/tensor.h"

namespace llm_dist {

// Storage of one row of K values. Block formats as GGUF v3 defines them (32 values along K a block):
//   q8_0: f16 d, 32 × int8               34 bytes   w = d·q
//   q4_0: f16 d, 16 × packed nibbles     18 bytes   w = d·(q − 8); low nibbles are values 0–15, high ones
//   16–31 q4_1: f16 d, f16 m, 16 × nibbles     20 bytes   w = d·q + m
// f8_e4m3: a byte a value, w = scale · q with one float scale for each row, in a part of its own.
enum class WeightScheme : uint8_t { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kF8E4M3 };

std::string_view to_string(WeightScheme scheme);

struct SchemeTraits {
  int64_t block_values;  // K values a block; a shard along K starts and ends at a multiple of this
  int64_t block_bytes;
};
constexpr SchemeTraits scheme_traits(WeightScheme scheme) {
  switch (scheme) {
    case WeightScheme::kF32: return {1, 4};
    case WeightScheme::kF16:
    case WeightScheme::kBF16: return {1, 2};
    case WeightScheme::kQ8_0: return {32, 34};
    case WeightScheme::kQ4_0: return {32, 18};
    case WeightScheme::kQ4_1: return {32, 20};
    case WeightScheme::kF8E4M3: return {1, 1};
  }
  return {1, 0};
}
constexpr int64_t row_bytes(WeightScheme scheme, int64_t k) {
  return k / scheme_traits(scheme).block_values * scheme_traits(scheme).block_bytes;
}
// In blocks that hold their own scales.
constexpr bool is_quantized(WeightScheme scheme) { return scheme_traits(scheme).block_values > 1; }
// With a float for each row in part 1.
constexpr bool has_row_scales(WeightScheme scheme) { return scheme == WeightScheme::kF8E4M3; }
constexpr int64_t scale_bytes(WeightScheme scheme, int64_t rows) {
  return has_row_scales(scheme) ? rows * int64_t{sizeof(float)} : 0;
}
WeightScheme scheme_of(DType dtype);  // without blocks

// y = x · Wᵀ with W [n, k]: row i of the weight is output feature i.
struct Weight {
  static constexpr int kMaxParts = 3;

  WeightScheme scheme = WeightScheme::kF32;
  int64_t n = 0;  // output features on this rank
  int64_t k = 0;  // input features on this rank
  // Part 0: the rows, row_bytes(scheme, k) each, as u8[n, row_bytes] whatever the scheme. Further parts
  // belong to schemes that keep them apart: part 1 of f8_e4m3 is its scales, f32[n].
  std::array<Tensor, kMaxParts> parts{};
  // A kernel may have rearranged part 0 in place (same bytes, other order) for its own speed:
  // kernels/linear.h.
  bool packed = false;

  int64_t bytes() const { return n * row_bytes(scheme, k) + scale_bytes(scheme, n); }
  explicit operator bool() const { return static_cast<bool>(parts[0]); }
};

}  // namespace llm_dist
