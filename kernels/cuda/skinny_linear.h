// y = x · Wᵀ (+ bias), gated or not, for one row of x, where nothing counts but how fast W is read. Weights
// in f8_e4m3 are widened and scaled here, x stays as it is; with those any shape can be run, row by row.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/matmul_shape.h"

namespace llm_dist::kernels {

bool takes_skinny_linear(const MatmulShape& shape);
cudaError_t launch_skinny_linear(const MatmulShape& shape,
                                 const MatmulOperands& operands,
                                 cudaStream_t stream);

}  // namespace llm_dist::kernels
