// Rotary position embedding (Su et al. 2021) of Q and K in place, and K and V appended to the paged cache.
#pragma once

#include "src/base/tensor.h"

namespace llm_dist::kernels {

// Heads rotate in halves (Hugging Face layout): (x[i], x[i + d/2]) by angle position · inverse_frequency[i].
// Token t's K and V go to block kv_slots[t] / block_size, offset kv_slots[t] % block_size; a negative slot
// (padding) is skipped.
struct RopeAppendParams {
  Tensor qkv;  // [num_tokens, (num_heads + 2 · num_kv_heads) · head_dim]: q heads, k heads, v heads; Q is
               // rotated
  Tensor positions;  // i32 [num_tokens]
  Tensor kv_slots;   // i32 [num_tokens]
  Tensor cos_sin;    // f32 [max_position, head_dim]: d/2 cosines, then d/2 sines, attention scaling included
  Tensor k_cache;    // [num_blocks, num_kv_heads, block_size, head_dim]
  Tensor v_cache;    // [num_blocks, num_kv_heads, block_size, head_dim]
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
};

}  // namespace llm_dist::kernels
