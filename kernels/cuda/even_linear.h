// The product of streamed_linear.h with the same work for every block. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/tensor_map.h"

namespace llm_dist::kernels {

// Device memory of one stream, where the blocks that share a strip leave their sums.
struct SharedStrips {
  // GH100 has so many; no GPU made of it uses all.
  static constexpr int kMostProcessors = 144;
  static constexpr int64_t kSumBytes = int64_t{kMostProcessors} * 64 * 64 * sizeof(float);
  // Two blocks of a processor, four warps each.
  static constexpr int64_t kFlagBytes = int64_t{kMostProcessors} * 2 * 4 * sizeof(uint32_t);

  float* sums = nullptr;      // kSumBytes; between two products anyone may use it
  uint32_t* flags = nullptr;  // kFlagBytes; zero between two products
};

// Of what StreamedLinear takes. `processors`: of the device, at most SharedStrips::kMostProcessors.
cudaError_t launch_even_linear(const TensorMapEncoder& encoder,
                               const MatmulShape& shape,
                               const MatmulOperands& operands,
                               const SharedStrips& shared,
                               int processors,
                               cudaStream_t stream);

}  // namespace llm_dist::kernels
