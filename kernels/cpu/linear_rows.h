// Rows of activations and outputs in any float dtype, as the linear kernels see them: floats.
#pragma once

#include "kernels/cpu/linear_convert.h"
#include "src/base/tensor.h"

namespace llm_dist::kernels {

inline FloatKind float_kind(DType dtype) {
  switch (dtype) {
    case DType::kBF16: return FloatKind::kBF16;
    case DType::kF16: return FloatKind::kF16;
    default: CHECK(dtype == DType::kF32, "a linear layer in {}", dtype); return FloatKind::kF32;
  }
}

inline std::byte* row_at(const Tensor& tensor, int64_t row, int64_t column = 0) {
  return static_cast<std::byte*>(tensor.data) +
         (row * tensor.strides[0] + column * tensor.strides[1]) * dtype_bytes(tensor.dtype);
}

// out[row, column + i] = sums[i] + bias[column + i], for `count` ≤ 64 columns.
inline void store_outputs(
    const Tensor& out, const Tensor& bias, int64_t row, int64_t column, const float* sums, int64_t count) {
  float biased[64];
  if (bias) {
    const std::byte* from = static_cast<const std::byte*>(bias.data) + column * dtype_bytes(bias.dtype);
    convert_to_f32_avx2(float_kind(bias.dtype), from, biased, count);
    for (int64_t i = 0; i < count; ++i) biased[i] += sums[i];
    sums = biased;
  }
  convert_from_f32_avx2(float_kind(out.dtype), sums, row_at(out, row, column), count);
}

}  // namespace llm_dist::kernels
