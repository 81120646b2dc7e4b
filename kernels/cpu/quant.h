// Quantized weights on CPU: rows back to floats, and the packed layout of prepare_weight.
//
// Packed: groups of 16 rows, each 16 · row_bytes(k) bytes at the place where its rows were; rows left over
// (n mod 16) stay plain behind them. A group holds its k / 32 blocks one after another; a block of a group is
//   16 × f16 d · (q4_1 only) 16 × f16 m · chunks of 64 bytes: 4 bytes of row 0, 4 of row 1, … 4 of row 15
// so that one 32-bit lane belongs to one row and a dot product needs no sum across lanes. Chunk j holds bytes
// 4j … 4j + 3 of the rows' quants: 4 chunks for the nibble schemes, 8 for q8_0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/weight.h"

namespace llm_dist::kernels {

inline constexpr int64_t kPackedRows = 16;

// One plain row of k values of any scheme, dense ones included, to floats; f8_e4m3 without its scale.
void dequantize_row(WeightScheme scheme, const std::byte* src, float* dst, int64_t k);

// Row `row` of a weight on CPU, packed or not, dense or quantized: k floats.
void dequantize_weight_row(const Weight& weight, int64_t row, float* dst);

// Packs up to 16 plain rows into one group of 16 · row_bytes(k) bytes; missing rows become zeros. src and dst
// do not overlap.
void pack_row_group(WeightScheme scheme, const std::byte* src, int64_t rows, int64_t k, std::byte* dst);

}  // namespace llm_dist::kernels
