// The loops over a row's values that a load spends its time in, compiled for each instruction set. What they
// give is the same on every CPU, bit for bit: conversions are those of src/base/dtype.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llm_dist::checkpoint {

// k values of a made-up row, for columns col_begin and on: see fill_dummy().
void make_up_row(uint64_t row_key, int64_t col_begin, float* values, int64_t k);

// bf16 as it stands in files, aligned or not.
void widen_bf16_row(const std::byte* row, float* values, int64_t k);
void round_to_bf16_row(const float* values, std::byte* row, int64_t k);

// to_f8e4m3(values[i] / scale).
void encode_f8_row(const float* values, float scale, std::byte* codes, int64_t k);

// The bits of the largest magnitude: of infinity or NaN where one of the values is that. 0 for none.
uint32_t largest_magnitude_bits(const float* values, int64_t k);

}  // namespace llm_dist::checkpoint
