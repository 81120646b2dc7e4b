// What a matrix product is, for cuBLASLt's kernels to be chosen by.
#pragma once

#include <compare>
#include <cstdint>

#include "src/base/dtype.h"
#include "src/device/handed_rows.h"

namespace llm_dist::kernels {

// y [m, n] = x [m, k] · Wᵀ, W [n, k]; gated: y [m, n / 2] = silu(the first half of that's columns) · the rest
struct MatmulShape {
  int64_t m = 0;  // rows of x and y
  int64_t n = 0;  // rows of W
  int64_t k = 0;
  int64_t x_stride = 0;  // in elements
  int64_t y_stride = 0;
  DType in = DType::kBF16;   // of x, bias and W, where these are not codes
  DType out = DType::kBF16;  // of y
  bool has_bias = false;
  bool f8_weight = false;  // W is f8_e4m3 with a scale a row
  bool gated = false;
  // x is codes of f8_e4m3 with a scale for each row (linear.h). Only our kernel for prompts takes such.
  bool x_codes = false;
  // A gated y, or the x of a product that is not gated, is in codes of f8_e4m3 with a scale for each group of
  // kCodeGroup columns. Likewise.
  bool grouped_codes = false;
  int alignment = 16;  // bytes that every operand's address is a multiple of

  int64_t columns() const { return gated ? n / 2 : n; }  // of y
  bool takes_groups() const { return grouped_codes && !gated; }
  bool has_codes() const { return x_codes || grouped_codes; }

  auto operator<=>(const MatmulShape&) const = default;
};

// Up to here, over all ranks that get them, a product of few rows sends its rows itself
// (MatmulOperands::terms): two columns at a time, where a kernel behind it sends whole rows.
inline constexpr int kMostSentRows = 32;

// Up to so many rows of x, where W is in f8_e4m3, our kernels take x in parts, so that nothing is rounded.
// More rows are rounded, by whatever kernel: in parts they would cost more than that.
inline constexpr int kMostRowsInParts = 32;

struct MatmulOperands {
  const void* x = nullptr;
  const void* w = nullptr;
  const void* bias = nullptr;
  const float* w_scales = nullptr;  // [n], of f8_e4m3
  const float* x_scales = nullptr;  // [m], of an x that is codes; or [k / kCodeGroup, m], of groups
  float* y_scales = nullptr;        // [n / 2 / kCodeGroup, m], of groups of a gated y
  void* y = nullptr;
  void* product = nullptr;  // of a gated one, [m, n]: memory for x · Wᵀ where it comes before the gate
  // Where y's rows go in the place of y, as terms of sums over ranks; of products that send them
  // (Matmul::sends, FusedRow::sends).
  device::PeerTerms terms;
  // Of x, where other ranks' rows are still to come; of products that hand this rank's (Matmul::hands).
  device::HandedRows handed;
};

}  // namespace llm_dist::kernels
