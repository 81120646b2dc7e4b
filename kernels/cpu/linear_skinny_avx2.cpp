#include "kernels/cpu/linear_skinny_kernel.h"

namespace llm_dist::kernels {
namespace {

struct Avx2 {
  using Type = __m256;
  static constexpr int64_t kLanes = 8;
  static constexpr int kRows = 3;  // 12 sums, 3 weights and an activation in 16 registers
  static constexpr int kTokens = 4;

  static LLM_DIST_INLINE Type zero() { return _mm256_setzero_ps(); }
  static LLM_DIST_INLINE Type load_f32(const float* src) { return _mm256_loadu_ps(src); }
  static LLM_DIST_INLINE Type fma(Type a, Type b, Type c) { return _mm256_fmadd_ps(a, b, c); }
  static LLM_DIST_INLINE float sum(Type v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
  }
  template <FloatKind kKind>
  static LLM_DIST_INLINE Type load(const std::byte* src) {
    if constexpr (kKind == FloatKind::kF32) return _mm256_loadu_ps(reinterpret_cast<const float*>(src));
    __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src));
    if constexpr (kKind == FloatKind::kF16) return _mm256_cvtph_ps(bits);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
};

}  // namespace

SkinnyFn skinny_avx2(FloatKind weights) { return skinny_of<Avx2>(weights); }

}  // namespace llm_dist::kernels
