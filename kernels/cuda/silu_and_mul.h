// SiLU(gate) · up over rows of products, as an op of its own and behind a library's gate-up projection.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

// out [rows, width] from gate_up [rows, 2 · width], both f32, bf16 or f16.
struct GatedRows {
  DType dtype = DType::kBF16;
  const void* gate_up = nullptr;
  int64_t gate_up_stride = 0;  // in elements
  void* out = nullptr;
  int64_t out_stride = 0;
  int64_t rows = 0;
  int64_t width = 0;
};
cudaError_t launch_silu_and_mul(const GatedRows& rows, cudaStream_t stream);

}  // namespace llm_dist::kernels
