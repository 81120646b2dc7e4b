// AVX2: byte products in pairs to int16 (maddubs), which the operands' ranges keep from saturating.
#include "kernels/cpu/linear_quant_256.h"

namespace llm_dist::kernels {
namespace {

struct Avx2Dot {
  // A pair of products is at most 2 · 15 · 127, so that eight of them still fit int16.
  static LLM_DIST_INLINE __m256i nibbles(const __m256i* w, const int8_t* x) {
    __m256i sums = _mm256_maddubs_epi16(w[0], broadcast4(x));
    for (int j = 1; j < 8; ++j) {
      sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(w[j], broadcast4(x + 4 * j)));
    }
    return _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
  }
  // maddubs wants one unsigned operand: |w| · (x with w's sign), a pair at most 2 · 128 · 127.
  static LLM_DIST_INLINE __m256i bytes(const __m256i* w, const int8_t* x) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sums = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
      __m256i pairs =
          _mm256_maddubs_epi16(_mm256_abs_epi8(w[j]), _mm256_sign_epi8(broadcast4(x + 4 * j), w[j]));
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, ones));
    }
    return sums;
  }
};

// The largest magnitude of 32 floats. As integers, magnitudes are ordered like the floats, with infinity and
// NaN above all, so that a block with one of those gets it as its scale and stays as wrong as it was.
LLM_DIST_INLINE float largest_magnitude(const __m256* v) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i m = _mm256_and_si256(_mm256_castps_si256(v[0]), magnitude);
  for (int i = 1; i < 4; ++i) {
    m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
  h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1))));
}

// Four vectors of int32 in [−128, 127], in order, to 32 bytes.
LLM_DIST_INLINE __m256i to_bytes(const __m256i* q) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes the packs' lane order
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  return _mm256_permutevar8x32_epi32(bytes, order);
}

LLM_DIST_INLINE int32_t sum_i8(__m256i q) {
  __m256i words = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  __m256i dwords = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

}  // namespace

QuantTileFn quant_tile_avx2(QuantScheme scheme) { return tile_of<Avx2Dot>(scheme); }

void quantize_blocks_avx2(const float* x, int64_t blocks, QuantizedBlock* out) {
  constexpr float kLargest = 127.0f * 256.0f;
  for (int64_t b = 0; b < blocks; ++b, x += 32) {
    __m256 v[4];
    for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
    const float scale = largest_magnitude(v) / kLargest;
    const __m256 inverse = _mm256_set1_ps(scale < 1e-37f ? 0.0f : 1.0f / scale);
    __m256i high[4], low[4];
    for (int i = 0; i < 4; ++i) {
      __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
      high[i] = _mm256_srai_epi32(_mm256_add_epi32(q, _mm256_set1_epi32(128)), 8);
      // −128 has no positive counterpart for the sign tricks of the dot products; −127 is within the
      // rounding.
      low[i] = _mm256_max_epi32(_mm256_sub_epi32(q, _mm256_slli_epi32(high[i], 8)), _mm256_set1_epi32(-127));
    }
    const __m256i high_bytes = to_bytes(high);
    const __m256i low_bytes = to_bytes(low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[b].high), high_bytes);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out[b].low), low_bytes);
    out[b].scale = scale;
    const int32_t sum = 256 * sum_i8(high_bytes) + sum_i8(low_bytes);
    out[b].sum = scale * static_cast<float>(sum);
    out[b].negative_sum = -sum;
  }
}

}  // namespace llm_dist::kernels
