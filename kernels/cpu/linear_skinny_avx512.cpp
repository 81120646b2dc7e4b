#include "kernels/cpu/linear_skinny_kernel.h"

namespace llm_dist::kernels {
namespace {

struct Avx512 {
  using Type = __m512;
  static constexpr int64_t kLanes = 16;
  static constexpr int kRows = 3;  // 24 sums, 3 weights and an activation in 32 registers
  static constexpr int kTokens = 8;

  static LLM_DIST_INLINE Type zero() { return _mm512_setzero_ps(); }
  static LLM_DIST_INLINE Type load_f32(const float* src) { return _mm512_loadu_ps(src); }
  static LLM_DIST_INLINE Type fma(Type a, Type b, Type c) { return _mm512_fmadd_ps(a, b, c); }
  static LLM_DIST_INLINE float sum(Type v) { return _mm512_reduce_add_ps(v); }
  template <FloatKind kKind>
  static LLM_DIST_INLINE Type load(const std::byte* src) {
    if constexpr (kKind == FloatKind::kF32) return _mm512_loadu_ps(src);
    __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
    if constexpr (kKind == FloatKind::kF16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
};

}  // namespace

SkinnyFn skinny_avx512(FloatKind weights) { return skinny_of<Avx512>(weights); }

}  // namespace llm_dist::kernels
