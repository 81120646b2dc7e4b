// A K or V cache [num_blocks, num_kv_heads, block_size, head_dim] as the CPU ops address it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/row_views.h"
#include "src/base/tensor.h"

namespace llm_dist::kernels {

struct KvView {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t num_blocks = 0;
  int64_t num_kv_heads = 0;
  int64_t block_size = 0;
  int64_t head_dim = 0;
  int64_t block_stride = 0;  // in elements, as is the next
  int64_t head_stride = 0;

  // The head_dim values of one token's head; tokens of a block follow one another.
  template <typename Kv>
  Kv* at(int64_t block, int64_t head, int64_t offset) const {
    return reinterpret_cast<Kv*>(data) + block * block_stride + head * head_stride + offset * head_dim;
  }
};

inline KvView kv_view(const Tensor& cache) {
  CHECK_EQ(int{cache.rank}, 4);
  CHECK(is_activation(cache.dtype) || cache.dtype == DType::kF8E4M3, "a KV cache in {}", cache.dtype);
  CHECK(cache.stride(3) == 1 && (cache.dim(2) == 1 || cache.stride(2) == cache.dim(3)),
        "blocks of {} are not contiguous",
        cache.to_string());
  return {static_cast<std::byte*>(cache.data),
          cache.dtype,
          cache.dim(0),
          cache.dim(1),
          cache.dim(2),
          cache.dim(3),
          cache.stride(0),
          cache.stride(1)};
}

}  // namespace llm_dist::kernels
