// AVX-VNNI: four byte products and their sum in one 256-bit instruction.
#include "kernels/cpu/linear_quant_256.h"

namespace llm_dist::kernels {
namespace {

struct AvxVnniDot {
  static LLM_DIST_INLINE __m256i nibbles(const __m256i* w, const int8_t* x) {
    __m256i even = _mm256_setzero_si256();
    __m256i odd = _mm256_setzero_si256();
    for (int j = 0; j < 8; j += 2) {
      even = _mm256_dpbusd_avx_epi32(even, w[j], broadcast4(x + 4 * j));
      odd = _mm256_dpbusd_avx_epi32(odd, w[j + 1], broadcast4(x + 4 * j + 4));
    }
    return _mm256_add_epi32(even, odd);
  }
  // One operand is unsigned: |w| · (x with w's sign).
  static LLM_DIST_INLINE __m256i bytes(const __m256i* w, const int8_t* x) {
    __m256i sums = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
      sums =
          _mm256_dpbusd_avx_epi32(sums, _mm256_abs_epi8(w[j]), _mm256_sign_epi8(broadcast4(x + 4 * j), w[j]));
    }
    return sums;
  }
};

}  // namespace

QuantTileFn quant_tile_avx_vnni(QuantScheme scheme) { return tile_of<AvxVnniDot>(scheme); }

}  // namespace llm_dist::kernels
