// Embedding lookup over one vocabulary shard.
#pragma once

#include "src/base/tensor.h"
#include "src/base/weight.h"

namespace llm_dist::kernels {

// out[t] = row ids[t] − vocab_begin of `table`, converted to out's dtype; zeros where the id lies outside the
// shard, so that a sum over the shards is the lookup in the whole table.
struct EmbeddingParams {
  Tensor ids;    // i32 [num_tokens]
  Weight table;  // [vocab_shard, hidden], any scheme
  int64_t vocab_begin = 0;
  Tensor out;  // [num_tokens, hidden]
};

}  // namespace llm_dist::kernels
