// KvSpec: what one layer group's cache looks like on one rank.
#pragma once

#include <cstdint>

#include "src/base/dtype.h"

namespace llm_dist {

// Layout of one layer's cache: K and V are separate tensors [num_blocks, num_kv_heads, block_size, head_dim],
// so that one head's tokens of a block are contiguous.
struct KvSpec {
  int64_t num_layers = 0;    // layers on this rank
  int64_t num_kv_heads = 0;  // heads on this rank
  int64_t head_dim = 0;
  int64_t block_size = 16;  // tokens a block
  DType dtype = DType::kBF16;

  int64_t block_bytes_per_layer() const {
    return 2 * num_kv_heads * block_size * head_dim * dtype_bytes(dtype);
  }
  int64_t block_bytes() const { return num_layers * block_bytes_per_layer(); }
};

}  // namespace llm_dist
