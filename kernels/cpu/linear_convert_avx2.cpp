#include <immintrin.h>

#include "kernels/cpu/linear_convert.h"

namespace llm_dist::kernels {
namespace {

__m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

__m128i narrow_bf16(__m256 v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
}

__m256 load8(FloatKind kind, const void* src) {
  if (kind == FloatKind::kF32) return _mm256_loadu_ps(static_cast<const float*>(src));
  __m128i bits = _mm_loadu_si128(static_cast<const __m128i*>(src));
  return kind == FloatKind::kBF16 ? widen_bf16(bits) : _mm256_cvtph_ps(bits);
}

void store8(FloatKind kind, __m256 v, void* dst) {
  if (kind == FloatKind::kF32) return _mm256_storeu_ps(static_cast<float*>(dst), v);
  __m128i bits = kind == FloatKind::kBF16 ? narrow_bf16(v) : _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(static_cast<__m128i*>(dst), bits);
}

}  // namespace

void convert_to_f32_avx2(FloatKind kind, const void* src, float* dst, int64_t n) {
  const int64_t size = kind == FloatKind::kF32 ? 4 : 2;
  const char* from = static_cast<const char*>(src);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, load8(kind, from + i * size));
  if (i == n) return;
  alignas(32) char rest[32] = {};
  alignas(32) float floats[8];
  __builtin_memcpy(rest, from + i * size, static_cast<unsigned long>((n - i) * size));
  _mm256_store_ps(floats, load8(kind, rest));
  __builtin_memcpy(dst + i, floats, static_cast<unsigned long>((n - i) * 4));
}

void convert_from_f32_avx2(FloatKind kind, const float* src, void* dst, int64_t n) {
  const int64_t size = kind == FloatKind::kF32 ? 4 : 2;
  char* to = static_cast<char*>(dst);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) store8(kind, _mm256_loadu_ps(src + i), to + i * size);
  if (i == n) return;
  alignas(32) float floats[8] = {};
  alignas(32) char rest[32];
  __builtin_memcpy(floats, src + i, static_cast<unsigned long>((n - i) * 4));
  store8(kind, _mm256_load_ps(floats), rest);
  __builtin_memcpy(to + i * size, rest, static_cast<unsigned long>((n - i) * size));
}

}  // namespace llm_dist::kernels
