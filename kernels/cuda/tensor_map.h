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

// Of a box's first dimension.
int box_columns(DType dtype);
// Rows of a matrix, `stride` elements from one to the next, in boxes of `box_rows` of them.
TensorMapShape rows_of(
    DType dtype, const void* data, int64_t columns, int64_t rows, int64_t stride, int box_rows);

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
