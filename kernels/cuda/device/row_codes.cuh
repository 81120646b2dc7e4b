// Elements to codes of f8_e4m3 with one scale for all of a row, or of a part of one: its largest magnitude
// becomes the largest code.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

inline constexpr float kLeastMagnitude = 1e-30f;  // keeps a row of zeros from dividing by zero

struct CodeScale {
  float largest = kLeastMagnitude;  // of the magnitudes of all that share the scale, once they have met

  __device__ void look_at(float value) { largest = fmaxf(largest, fabsf(value)); }
  // By what elements are multiplied to become codes, and codes to become elements.
  __device__ float factor() const { return kLargestF8E4M3 / largest; }
  __device__ float scale() const { return largest / kLargestF8E4M3; }
};

// Of two neighbouring elements that are scaled already, the first in the low byte.
__device__ inline __nv_fp8x2_storage_t pair_of_codes(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

// Of eight elements.
__device__ inline uint2 eight_codes(const float (&values)[8], float factor) {
  uint2 packed = {0, 0};
  auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&packed);
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = pair_of_codes(values[2 * i] * factor, values[2 * i + 1] * factor);
  return packed;
}

}  // namespace llm_dist::kernels
