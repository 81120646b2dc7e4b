// Dense dot products of a few weight rows with a few tokens, shared by the AVX2 and the AVX-512 file, which
// say what a vector is. Each weight is read and widened once for a tile's tokens. Everything here is in an
// unnamed namespace: the two files compile it for different instruction sets.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/linear_skinny.h"

namespace llm_dist::kernels {
namespace {

#define LLM_DIST_INLINE inline __attribute__((always_inline))

constexpr int64_t element_bytes(FloatKind kind) { return kind == FloatKind::kF32 ? 4 : 2; }

// kRows × kTokens sums at once. The last k mod kLanes values go through buffers padded with zeros.
template <typename Vec, FloatKind kKind, int kRows, int kTokens>
LLM_DIST_INLINE void dot_tile(const SkinnyTile& tile, int64_t row, int64_t token) {
  constexpr int64_t kLanes = Vec::kLanes;
  constexpr int64_t kSize = element_bytes(kKind);
  const std::byte* w = tile.rows + row * tile.k * kSize;
  const float* x = tile.x + token * tile.k;
  typename Vec::Type acc[kRows][kTokens];
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) acc[r][t] = Vec::zero();
  }
  auto step = [&](const std::byte* w_at, int64_t w_stride, const float* x_at, int64_t x_stride)
                  __attribute__((always_inline)) {
                    typename Vec::Type weights[kRows];
                    for (int r = 0; r < kRows; ++r)
                      weights[r] = Vec::template load<kKind>(w_at + r * w_stride);
                    for (int t = 0; t < kTokens; ++t) {
                      typename Vec::Type value = Vec::load_f32(x_at + t * x_stride);
                      for (int r = 0; r < kRows; ++r) acc[r][t] = Vec::fma(weights[r], value, acc[r][t]);
                    }
                  };
  int64_t i = 0;
  for (; i + kLanes <= tile.k; i += kLanes) step(w + i * kSize, tile.k * kSize, x + i, tile.k);
  if (i < tile.k) {
    alignas(64) std::byte w_rest[kRows * kLanes * kSize] = {};
    alignas(64) float x_rest[kTokens * kLanes] = {};
    const auto rest = static_cast<unsigned long>(tile.k - i);
    for (int r = 0; r < kRows; ++r) {
      __builtin_memcpy(w_rest + r * kLanes * kSize, w + (r * tile.k + i) * kSize, rest * kSize);
    }
    for (int t = 0; t < kTokens; ++t) __builtin_memcpy(x_rest + t * kLanes, x + t * tile.k + i, rest * 4);
    step(w_rest, kLanes * kSize, x_rest, kLanes);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int t = 0; t < kTokens; ++t) {
      tile.out[(token + t) * tile.out_stride + row + r] = Vec::sum(acc[r][t]);
    }
  }
}

template <typename Vec, FloatKind kKind, int kTokens>
void dot_rows(const SkinnyTile& tile, int64_t token) {
  constexpr int kRows = Vec::kRows;
  int64_t row = 0;
  for (; row + kRows <= tile.num_rows; row += kRows) dot_tile<Vec, kKind, kRows, kTokens>(tile, row, token);
  for (; row < tile.num_rows; ++row) dot_tile<Vec, kKind, 1, kTokens>(tile, row, token);
}

template <typename Vec, FloatKind kKind, int kTokens>
void run_from(const SkinnyTile& tile, int64_t token) {
  for (; token + kTokens <= tile.tokens; token += kTokens) dot_rows<Vec, kKind, kTokens>(tile, token);
  if constexpr (kTokens > 1) run_from<Vec, kKind, kTokens / 2>(tile, token);
}

template <typename Vec, FloatKind kKind>
void run(const SkinnyTile& tile) {
  run_from<Vec, kKind, Vec::kTokens>(tile, 0);
}

template <typename Vec>
SkinnyFn skinny_of(FloatKind kind) {
  switch (kind) {
    case FloatKind::kF32: return run<Vec, FloatKind::kF32>;
    case FloatKind::kBF16: return run<Vec, FloatKind::kBF16>;
    default: return run<Vec, FloatKind::kF16>;
  }
}

}  // namespace
}  // namespace llm_dist::kernels
