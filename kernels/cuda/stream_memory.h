// Device memory that products of few rows need beside their operands, of one stream.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

struct StreamMemory {
  // GH100 has so many; no GPU made of it uses all.
  static constexpr int kMostProcessors = 144;
  // Of a processor: of a wide strip and 256 rows of x.
  static constexpr int64_t kSumBytes = int64_t{kMostProcessors} * 128 * 256 * sizeof(float);
  // Of a processor: of two blocks of four warps, or one of eight.
  static constexpr int64_t kFlagBytes = int64_t{kMostProcessors} * 8 * sizeof(uint32_t);
  // Where W is in f8_e4m3: three parts of 32 rows of x, or 128 rows.
  static constexpr int64_t kMostCodeRows = 128;

  // Where blocks that share a strip leave their sums (even_linear.h).
  float* sums = nullptr;      // kSumBytes; between two products anyone may use it
  uint32_t* flags = nullptr;  // kFlagBytes; zero between two products
  // x in parts of 8 bits (quantize_rows.h); without weights in f8_e4m3, none.
  uint8_t* codes = nullptr;      // [kMostCodeRows, k]
  float* code_scales = nullptr;  // [kMostCodeRows]
};

}  // namespace llm_dist::kernels
