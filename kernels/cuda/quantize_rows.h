// Activations to f8_e4m3, each row by its own largest magnitude, for products of 8-bit floats.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

struct QuantizeRows {
  DType in = DType::kBF16;  // or f16
  const void* x = nullptr;  // [rows, k], aligned to 16 bytes like its stride
  int64_t x_stride = 0;     // in elements
  int64_t rows = 0;
  int64_t k = 0;             // a multiple of 8
  uint8_t* codes = nullptr;  // [rows, k]
  float* scales = nullptr;   // [rows]: x ≈ scale · code
};

cudaError_t launch_quantize_rows(const QuantizeRows& rows, cudaStream_t stream);

}  // namespace llm_dist::kernels
