// Packed int8 tiles with AVX-512 VNNI. A block of a group holds 32 weights of 16 rows, one row a 32-bit lane:
// eight dot-product instructions a token, each against four activations broadcast to every lane. Weights are
// the unsigned operand: nibbles as they are, q8_0 with 128 added; what that adds to a product, the
// activations' negative sum takes off before it is scaled.
#include <immintrin.h>

#include "kernels/cpu/linear_quant.h"

namespace llm_dist::kernels {
namespace {

#define LLM_DIST_INLINE inline __attribute__((always_inline))

struct GroupBlock {
  __m512i q[8];   // unsigned weights k = 4j … 4j + 3 of each row
  __m512 scale;   // d
  __m512 offset;  // m, q4_1 only
};

LLM_DIST_INLINE __m512 load_f16(const std::byte* src) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(src)));
}

template <QuantScheme kScheme>
constexpr int64_t kGroupBlockBytes = kScheme == QuantScheme::kQ4_0   ? 288
                                     : kScheme == QuantScheme::kQ4_1 ? 320
                                                                     : 544;

template <QuantScheme kScheme>
LLM_DIST_INLINE GroupBlock load_block(const std::byte* src) {
  GroupBlock block;
  block.scale = load_f16(src);
  src += 32;
  if constexpr (kScheme == QuantScheme::kQ4_1) {
    block.offset = load_f16(src);
    src += 32;
  }
  if constexpr (kScheme == QuantScheme::kQ8_0) {
    const __m512i bias = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int j = 0; j < 8; ++j) block.q[j] = _mm512_xor_si512(_mm512_loadu_si512(src + 64 * j), bias);
  } else {
    const __m512i low = _mm512_set1_epi8(0x0f);
    for (int j = 0; j < 4; ++j) {
      __m512i nibbles = _mm512_loadu_si512(src + 64 * j);
      block.q[j] = _mm512_and_si512(nibbles, low);
      block.q[4 + j] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low);
    }
  }
  return block;
}

LLM_DIST_INLINE __m512i broadcast4(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm512_set1_epi32(four);
}

// What the weights' unsigned form has too much: 8 or 128 times the activations' sum.
template <QuantScheme kScheme>
LLM_DIST_INLINE __m512i excess(const QuantizedBlock& x) {
  if constexpr (kScheme == QuantScheme::kQ4_1) return _mm512_setzero_si512();
  return _mm512_slli_epi32(_mm512_set1_epi32(x.negative_sum), kScheme == QuantScheme::kQ4_0 ? 3 : 7);
}

// The high and the low bytes' sums run side by side: two chains of eight.
template <QuantScheme kScheme>
LLM_DIST_INLINE __m512i dot_block(const GroupBlock& block, const QuantizedBlock& x) {
  __m512i high = _mm512_setzero_si512();
  __m512i low = excess<kScheme>(x);
  for (int j = 0; j < 8; ++j) {
    high = _mm512_dpbusd_epi32(high, block.q[j], broadcast4(x.high + 4 * j));
    low = _mm512_dpbusd_epi32(low, block.q[j], broadcast4(x.low + 4 * j));
  }
  return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low);
}

template <QuantScheme kScheme, int kTokens>
LLM_DIST_INLINE void run_tile(const QuantTile& tile) {
  __m512 acc[kTokens];
  for (int t = 0; t < kTokens; ++t) acc[t] = _mm512_setzero_ps();
  const std::byte* group = tile.group;
  for (int64_t b = 0; b < tile.blocks; ++b, group += kGroupBlockBytes<kScheme>) {
    // The hardware's prefetchers stop at pages and start late on short rows: 20 to 30 % at one token.
    for (int64_t line = 0; line < kGroupBlockBytes<kScheme>; line += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(group + 4 * kGroupBlockBytes<kScheme> + line), _MM_HINT_T0);
    }
    GroupBlock block = load_block<kScheme>(group);
    for (int t = 0; t < kTokens; ++t) {
      const QuantizedBlock& x = tile.x[t * tile.blocks + b];
      __m512 dot = _mm512_cvtepi32_ps(dot_block<kScheme>(block, x));
      __m512 scale = _mm512_mul_ps(block.scale, _mm512_set1_ps(x.scale));
      acc[t] = _mm512_fmadd_ps(dot, scale, acc[t]);
      if constexpr (kScheme == QuantScheme::kQ4_1) {
        acc[t] = _mm512_fmadd_ps(block.offset, _mm512_set1_ps(x.sum), acc[t]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) _mm512_storeu_ps(tile.out + tile.out_stride * t, acc[t]);
}

template <QuantScheme kScheme>
void run(const QuantTile& tile) {
  switch (tile.tokens) {
    case 1: return run_tile<kScheme, 1>(tile);
    case 2: return run_tile<kScheme, 2>(tile);
    case 3: return run_tile<kScheme, 3>(tile);
    case 4: return run_tile<kScheme, 4>(tile);
    case 5: return run_tile<kScheme, 5>(tile);
    case 6: return run_tile<kScheme, 6>(tile);
    case 7: return run_tile<kScheme, 7>(tile);
    default: return run_tile<kScheme, 8>(tile);
  }
}

}  // namespace

QuantTileFn quant_tile_avx512(QuantScheme scheme) {
  switch (scheme) {
    case QuantScheme::kQ4_0: return run<QuantScheme::kQ4_0>;
    case QuantScheme::kQ4_1: return run<QuantScheme::kQ4_1>;
    default: return run<QuantScheme::kQ8_0>;
  }
}

}  // namespace llm_dist::kernels
