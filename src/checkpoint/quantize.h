// Conversions between stored rows (WeightScheme) and float: the reference that kernels are tested against,
// and what converting a checkpoint uses. Those of blocks are slow and obvious; dense ones are row_loops.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/base/status.h"
#include "src/base/weight.h"

namespace llm_dist::checkpoint {

// k values of one stored row to float; k is a multiple of the scheme's block. f8_e4m3: without its scale.
void dequantize_row(WeightScheme scheme, const std::byte* row, float* out, int64_t k);

// k floats to one stored row, nearest value of each block (q8_0: d = max|x| / 127; q4_0: d = the value of
// largest magnitude / −8; q4_1: d = (max − min) / 15, m = min), as GGUF's reference encoder defines them.
void quantize_row(WeightScheme scheme, const float* values, std::byte* row, int64_t k);

// data_loss that names tensor and row where a row that is to be f16 has a finite value too large for that.
// One with values that are none is left alone: so it stands in the checkpoint.
Status check_fits_f16(std::string_view tensor, int64_t row, const float* values, int64_t k);

// The scale of a row that is to be f8_e4m3: its largest magnitude becomes the largest code, 448; 1 for a row
// of zeros. NaN where a value is not finite.
float f8_row_scale(const float* values, int64_t k);
// The codes of k of its values: values[i] / scale, rounded to nearest even.
void quantize_f8(const float* values, float scale, std::byte* codes, int64_t k);

}  // namespace llm_dist::checkpoint
