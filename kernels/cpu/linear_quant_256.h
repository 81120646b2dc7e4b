// Packed int8 tiles on 256-bit vectors, shared by the AVX2 and the AVX-VNNI file, which say how to take a dot
// product. A group's 16 rows are two halves of eight 32-bit lanes. Everything here is in an unnamed
// namespace: the two files compile it for different instruction sets.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_quant.h"

namespace llm_dist::kernels {
namespace {

#define LLM_DIST_INLINE inline __attribute__((always_inline))

template <QuantScheme kScheme>
constexpr int64_t kGroupBlockBytes = kScheme == QuantScheme::kQ4_0   ? 288
                                     : kScheme == QuantScheme::kQ4_1 ? 320
                                                                     : 544;

// A token's four activations in every lane.
LLM_DIST_INLINE __m256i broadcast4(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm256_set1_epi32(four);
}

LLM_DIST_INLINE __m256 load_f16(const std::byte* src) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src)));
}

struct HalfBlock {
  __m256i q[8];   // weights k = 4j … 4j + 3 of each row: nibbles unsigned, q8_0 signed
  __m256 scale;   // d
  __m256 offset;  // m, q4_1 only
};

template <QuantScheme kScheme>
LLM_DIST_INLINE HalfBlock load_block(const std::byte* src, int half) {
  HalfBlock block;
  block.scale = load_f16(src + 16 * half);
  src += 32;
  if constexpr (kScheme == QuantScheme::kQ4_1) {
    block.offset = load_f16(src + 16 * half);
    src += 32;
  }
  auto chunk = [&](int j) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 64 * j + 32 * half));
  };
  if constexpr (kScheme == QuantScheme::kQ8_0) {
    for (int j = 0; j < 8; ++j) block.q[j] = chunk(j);
  } else {
    const __m256i low = _mm256_set1_epi8(0x0f);
    for (int j = 0; j < 4; ++j) {
      __m256i nibbles = chunk(j);
      block.q[j] = _mm256_and_si256(nibbles, low);
      block.q[4 + j] = _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low);
    }
  }
  return block;
}

// Dot: static __m256i nibbles(const __m256i* w, const int8_t* x) and bytes(…), sums over 8 chunks.
template <typename Dot, QuantScheme kScheme, int kTokens>
LLM_DIST_INLINE void run_half(const QuantTile& tile, int half) {
  __m256 acc[kTokens];
  for (int t = 0; t < kTokens; ++t) acc[t] = _mm256_setzero_ps();
  const std::byte* group = tile.group;
  for (int64_t b = 0; b < tile.blocks; ++b, group += kGroupBlockBytes<kScheme>) {
    HalfBlock block = load_block<kScheme>(group, half);
    for (int t = 0; t < kTokens; ++t) {
      const QuantizedBlock& x = tile.x[t * tile.blocks + b];
      constexpr bool kBytes = kScheme == QuantScheme::kQ8_0;
      __m256i high = kBytes ? Dot::bytes(block.q, x.high) : Dot::nibbles(block.q, x.high);
      __m256i low = kBytes ? Dot::bytes(block.q, x.low) : Dot::nibbles(block.q, x.low);
      __m256i sums = _mm256_add_epi32(_mm256_slli_epi32(high, 8), low);
      if constexpr (kScheme == QuantScheme::kQ4_0) {  // w = d · (q − 8)
        sums = _mm256_add_epi32(sums, _mm256_slli_epi32(_mm256_set1_epi32(x.negative_sum), 3));
      }
      __m256 scale = _mm256_mul_ps(block.scale, _mm256_set1_ps(x.scale));
      acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, acc[t]);
      if constexpr (kScheme == QuantScheme::kQ4_1) {
        acc[t] = _mm256_fmadd_ps(block.offset, _mm256_set1_ps(x.sum), acc[t]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) _mm256_storeu_ps(tile.out + tile.out_stride * t + 8 * half, acc[t]);
}

template <typename Dot, QuantScheme kScheme, int kTokens>
void run_tokens(const QuantTile& tile) {
  run_half<Dot, kScheme, kTokens>(tile, 0);
  run_half<Dot, kScheme, kTokens>(tile, 1);
}

// Sixteen registers hold four tokens' sums beside the weights: wider tiles go in pieces.
template <typename Dot, QuantScheme kScheme>
void run(const QuantTile& tile) {
  for (int64_t t = 0; t < tile.tokens; t += 4) {
    QuantTile part = tile;
    part.x += t * tile.blocks;
    part.out += tile.out_stride * t;
    switch (tile.tokens - t) {
      case 1: run_tokens<Dot, kScheme, 1>(part); break;
      case 2: run_tokens<Dot, kScheme, 2>(part); break;
      case 3: run_tokens<Dot, kScheme, 3>(part); break;
      default: run_tokens<Dot, kScheme, 4>(part); break;
    }
  }
}

template <typename Dot>
QuantTileFn tile_of(QuantScheme scheme) {
  switch (scheme) {
    case QuantScheme::kQ4_0: return run<Dot, QuantScheme::kQ4_0>;
    case QuantScheme::kQ4_1: return run<Dot, QuantScheme::kQ4_1>;
    default: return run<Dot, QuantScheme::kQ8_0>;
  }
}

}  // namespace
}  // namespace llm_dist::kernels
