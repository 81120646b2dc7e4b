// The addition and norm of a single row (kernels/rms_norm.h), as ops that are put off keep it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

// residual ← residual + x; out ← its norm. A row of `width` elements; out may be x.
struct RowNorm {
  DType dtype = DType::kBF16;
  const void* x = nullptr;
  void* residual = nullptr;
  const void* weight = nullptr;
  void* out = nullptr;
  float epsilon = 0;
  int64_t width = 0;
};

// By a kernel of its own; all addresses and the width in bytes are multiples of 16.
cudaError_t launch_row_norm(const RowNorm& norm, cudaStream_t stream);

}  // namespace llm_dist::kernels
