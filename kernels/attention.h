// Causal paged attention for batches that mix prompt chunks and decodes (PagedAttention: Kwon et al. 2023;
// online softmax: Dao et al. 2022).
#pragma once

#include "src/base/tensor.h"

namespace llm_dist::kernels {

// What every backend's attention takes of head_dim: multiples of 8 up to 256.
inline constexpr int64_t kHeadDimStep = 8;
inline constexpr int64_t kMaxHeadDim = 256;
constexpr bool takes_head_dim(int64_t head_dim) {
  return head_dim > 0 && head_dim % kHeadDimStep == 0 && head_dim <= kMaxHeadDim;
}

// Sequence s owns queries [query_starts[s], query_starts[s + 1]); they are the last ones of its
// context_lens[s] tokens, whose K and V stand in the cache already. Query i of n sees the first
// context_lens[s] − n + i + 1 tokens. Sequences with no queries are padding. Grouped heads: query head h
// reads kv head h / (num_heads / num_kv_heads).
struct AttentionParams {
  Tensor q;             // [num_tokens, num_heads · head_dim], row stride free (a slice of the merged qkv)
  Tensor k_cache;       // [num_blocks, num_kv_heads, block_size, head_dim]
  Tensor v_cache;       // [num_blocks, num_kv_heads, block_size, head_dim]
  Tensor query_starts;  // i32 [num_sequences + 1]
  Tensor context_lens;  // i32 [num_sequences]
  Tensor block_tables;  // i32 [num_sequences, max_blocks]
  Tensor out;           // [num_tokens, num_heads · head_dim]
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
};

// What is known before a step. The host knows upper bounds only, since with look-ahead the device is ahead of
// it; what the device knows is exact. Two steps of equal num_sequences and num_tokens whose max_query_len is
// 1 get grids of equal size, so that a graph captured with one replays with the other's plan.
struct AttentionPlanParams {
  int64_t num_sequences = 0;
  int64_t num_tokens = 0;
  int64_t max_query_len = 0;
  int64_t max_context_len = 0;
  const int32_t* query_starts_host = nullptr;  // [num_sequences + 1], exact
  const int32_t* context_lens_host = nullptr;  // [num_sequences], upper bounds
  Tensor query_starts;                         // i32 [num_sequences + 1], on the device
  Tensor context_lens;                         // i32 [num_sequences], on the device
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_size = 0;
  DType dtype = DType::kF32;     // of queries
  DType kv_dtype = DType::kF32;  // of the cache
};

}  // namespace llm_dist::kernels
