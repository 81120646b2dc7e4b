// What one layer leaves for the products of the next one.
#pragma once

#include "src/base/tensor.h"
#include "src/device/handed_rows.h"

namespace llm_dist::parallel {

struct Activations {
  Tensor rows;      // [num_tokens, features]
  Tensor scales{};  // where rows are codes (kernels/linear.h), else empty
};

// Codes and, behind them, their scales, `groups` for each row, in the memory of `rows`, whose elements have
// 16 bits.
Activations codes_in(const Tensor& rows, int64_t groups);

// Of a norm: rows of `hidden` features, whole or local ones. handed: the other ranks' share of them is not
// there, and the product that reads them is to hand this rank's to the others.
struct Normed {
  Activations x;
  device::HandedRows handed{};
};

// What the product that reads normed rows takes in the place of all of them in 16 bits.
struct NormedAs {
  bool codes = false;   // kernels::OpTable::takes_codes
  bool shares = false;  // it can hand them among the ranks: kernels::OpTable::hands_rows
};

}  // namespace llm_dist::parallel
