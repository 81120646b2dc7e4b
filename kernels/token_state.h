// The device's own record of every running sequence: history[slot][position] is the token at that position,
// prompt and generated alike. Inputs of a decode step are read from it and sampled tokens written to it, so
// the host never has to know a token to schedule the step that follows it.
#pragma once

#include "src/base/tensor.h"

namespace llm_dist::kernels {

// ids[t] = history[slots[t], positions[t]]; 0 where slots[t] is negative (padding).
struct GatherTokensParams {
  Tensor history;    // i32 [num_slots, max_model_len]
  Tensor slots;      // i32 [num_tokens]
  Tensor positions;  // i32 [num_tokens]
  Tensor ids;        // i32 [num_tokens]
};

// history[slots[i], positions[i]] = tokens[i · token_stride]; negative slots are skipped.
struct ScatterTokensParams {
  Tensor tokens;  // i32 [≥ n · token_stride]
  int64_t token_stride = 1;
  Tensor slots;      // i32 [n]
  Tensor positions;  // i32 [n]
  Tensor history;    // i32 [num_slots, max_model_len]
};

// out[i] = x[rows[i] − x_begin]; zeros where rows[i] is negative or another shard's, so that a sum over the
// shards is the row of the whole tensor.
struct GatherRowsParams {
  Tensor x;             // [num_tokens, hidden], or a shard of it
  int64_t x_begin = 0;  // the row of the whole that x begins with
  int64_t x_whole = 0;  // rows of the whole; 0: x is
  Tensor rows;          // i32 [n], below that, negative for padding
  Tensor out;           // [n, hidden]
};

}  // namespace llm_dist::kernels
