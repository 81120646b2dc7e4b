// What the dense kernels for few tokens take: plain data only (linear_quant.h says why).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_convert.h"

namespace llm_dist::kernels {

// out[t, r] = Σ_i rows[r, i] · x[t, i], in f32. Results depend on a row and a token alone.
struct SkinnyTile {
  const std::byte* rows;  // [num_rows, k] of the function's kind, contiguous
  int64_t num_rows;
  int64_t k;
  const float* x;  // [tokens, k]
  int64_t tokens;
  float* out;  // [tokens, num_rows], rows out_stride floats apart
  int64_t out_stride;
};

using SkinnyFn = void (*)(const SkinnyTile&);
SkinnyFn skinny_avx2(FloatKind weights);
SkinnyFn skinny_avx512(FloatKind weights);

}  // namespace llm_dist::kernels
