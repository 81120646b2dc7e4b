// What TMA is told of a tensor in global memory (CUDA driver API, "Tensor Map Object Management").
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

// In elements, the fastest dimension first. A box's first dimension is 128 bytes wide, the widest swizzle.
struct TensorMapShape {
  DType dtype = DType::kBF16;
  const void* data = nullptr;
  int dimensions = 2;
  std::array<int64_t, 5> sizes{};
  std::array<int64_t, 4> strides{};  // of all but the first dimension
  std::array<int, 5> box{};
};

class TensorMapEncoder {
 public:
  // Finds the driver's function, which older ones lack; before anything is encoded.
  cudaError_t find();
  // What lies outside the tensor reads as zero.
  cudaError_t encode(const TensorMapShape& shape, CUtensorMap& map) const;

 private:
  void* encode_ = nullptr;
};

}  // namespace llm_dist::kernels
