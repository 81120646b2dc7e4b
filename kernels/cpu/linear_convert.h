// Runs of f32, bf16 and f16 converted with F16C and AVX2.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

enum class FloatKind : uint8_t { kF32, kBF16, kF16 };

// n elements of `kind` at src to floats.
void convert_to_f32_avx2(FloatKind kind, const void* src, float* dst, int64_t n);

// n floats to `kind`, rounded to nearest even, as base's to_bf16 and to_f16 do.
void convert_from_f32_avx2(FloatKind kind, const float* src, void* dst, int64_t n);

}  // namespace llm_dist::kernels
