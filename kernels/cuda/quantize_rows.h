// Activations to f8_e4m3, for products of 8-bit floats.
//
// In one part each row is scaled by its own largest magnitude and rounded. In several it is scaled by a power
// of two and nothing is rounded that bf16 or f16 holds, but what is tiny beside the row's largest: a part has
// four bits of an element, and the next one what it leaves over, times kPartLift.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

// Of rows that are scaled to below 256 a code leaves 8 over at most: lifted, that is 256.
inline constexpr float kPartLift = 32;

struct QuantizeRows {
  DType in = DType::kBF16;  // or f16
  const void* x = nullptr;  // [rows, k], aligned to 16 bytes like its stride
  int64_t x_stride = 0;     // in elements
  int64_t rows = 0;
  int64_t k = 0;             // a multiple of 8
  int parts = 1;             // or as many as hold an element: 2 of a bf16, 3 of an f16
  int64_t part_rows = 0;     // of codes: `rows` at least, those behind them are not written
  uint8_t* codes = nullptr;  // [parts, part_rows, k]
  float* scales = nullptr;   // [rows]: x ≈ scale · (code + code of the next part / kPartLift + …)
};

cudaError_t launch_quantize_rows(const QuantizeRows& rows, cudaStream_t stream);

}  // namespace llm_dist::kernels
