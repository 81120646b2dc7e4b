// What the int8 kernels take: plain data only, since each level's file is compiled for its own instruction
// set and must not emit an inline function that another file could end up calling.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llm_dist::kernels {

// 32 activations in 16 bits: x ≈ scale · q, q = 256 · high + low. With 8 bits the rounding of a whole model's
// layers adds up to a tenth of a logit, which turns near ties; the second byte costs dot products alone, and
// those are not what bounds one token (memory is). The sums are what a weight's offset multiplies.
struct QuantizedBlock {
  int8_t high[32];  // −127 … 127
  int8_t low[32];   // −127 … 127
  float scale;
  float sum;             // scale · Σ q
  int32_t negative_sum;  // −Σ q
};

enum class QuantScheme : uint8_t { kQ4_0, kQ4_1, kQ8_0 };

inline constexpr int kQuantTileTokens = 8;

// One packed group of 16 weight rows by up to kQuantTileTokens tokens. Results depend on a row and a token
// alone: every tile width does the same sums in the same order.
struct QuantTile {
  const std::byte* group;   // quant.h's layout
  const QuantizedBlock* x;  // [tokens, blocks]
  int64_t blocks;           // k / 32
  int64_t tokens;           // 1 … kQuantTileTokens
  float* out;               // [tokens, 16], rows out_stride floats apart
  int64_t out_stride;
};

using QuantTileFn = void (*)(const QuantTile&);
QuantTileFn quant_tile_avx2(QuantScheme scheme);
QuantTileFn quant_tile_avx_vnni(QuantScheme scheme);
QuantTileFn quant_tile_avx512(QuantScheme scheme);

// Quantizes 32 · blocks floats.
void quantize_blocks_avx2(const float* x, int64_t blocks, QuantizedBlock* out);

}  // namespace llm_dist::kernels
