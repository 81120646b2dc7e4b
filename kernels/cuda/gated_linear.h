// y = silu(x · Gᵀ) · (x · Uᵀ) of prompts, the gate applied where its sums are. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"

namespace llm_dist::kernels {

class GatedLinear {
 public:
  explicit GatedLinear(const HopperDevice& device) : device_(device) {}

  // Dense weights [G; U] in bf16 or f16 without a bias, 256 rows of x at least.
  bool takes(const MatmulShape& shape) const;
  // Does not touch operands.product.
  cudaError_t launch(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) const;

 private:
  template <typename T>
  cudaError_t launch_as(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) const;

  HopperDevice device_;
};

}  // namespace llm_dist::kernels
