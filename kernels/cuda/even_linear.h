// The product of streamed_linear.h with the same work for every block. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/tensor_map.h"

namespace llm_dist::kernels {

// Device memory of one stream, where the blocks that share a strip leave their sums.
struct SharedStrips {
  // GH100 has so many; no GPU made of it uses all.
  static constexpr int kMostProcessors = 144;
  // Of a processor: of a wide strip and 64 rows of x.
  static constexpr int64_t kSumBytes = int64_t{kMostProcessors} * 128 * 64 * sizeof(float);
  // Of a processor: of two blocks of four warps, or one of eight.
  static constexpr int64_t kFlagBytes = int64_t{kMostProcessors} * 8 * sizeof(uint32_t);

  float* sums = nullptr;      // kSumBytes; between two products anyone may use it
  uint32_t* flags = nullptr;  // kFlagBytes; zero between two products
};

// Of 64 rows of W, or of 128: those of weights in 16 bits alone.
enum class Strips : uint8_t { kNarrow, kWide };

// Of what StreamedLinear takes. `processors`: of the device, at most SharedStrips::kMostProcessors.
cudaError_t launch_even_linear(const TensorMapEncoder& encoder,
                               const MatmulShape& shape,
                               const MatmulOperands& operands,
                               Strips strips,
                               const SharedStrips& shared,
                               int processors,
                               cudaStream_t stream);

}  // namespace llm_dist::kernels
