// Rotation: a rope_append as kernels take it (kernels/rope_append.h), whichever of them does the work: its
// own (rope_append.cu), or that of the product in front (fused_row.cu).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist::kernels {

// Strides in elements. Of the caches, k_cache and v_cache are what is appended to.
struct Rotation {
  DType dtype = DType::kBF16;
  DType cache_dtype = DType::kBF16;
  void* qkv = nullptr;
  int64_t row_stride = 0;
  int64_t num_tokens = 0;
  const int32_t* positions = nullptr;  // [num_tokens]
  const int32_t* slots = nullptr;      // [num_tokens]
  const float* cos_sin = nullptr;
  int64_t cos_sin_stride = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;  // 0: nothing is to be done
  int block_size = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  void* k_cache = nullptr;
  void* v_cache = nullptr;
  bool aligned = false;  // rows, their halves of heads, angles and caches' keys, for accesses of 16 bytes

  int64_t columns() const { return (num_heads + int64_t{2} * num_kv_heads) * head_dim; }
  // Where a token's key or value of a kv head lies in its cache. `slot` is not negative.
  __host__ __device__ int64_t cache_offset(int slot, int kv_head) const {
    return slot / block_size * block_stride + kv_head * head_stride +
           static_cast<int64_t>(slot % block_size) * head_dim;
  }
};

}  // namespace llm_dist::kernels
