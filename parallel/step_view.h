// StepView: one step's inputs as the layers see them: views at fixed addresses, padded.
#pragma once

#include <cstdint>
#include <span>

#include "src/base/tensor.h"

namespace llm_dist::parallel {

struct KvLayer {
  Tensor k;  // [num_blocks, num_kv_heads, block_size, head_dim]
  Tensor v;
};

// What the host knows of a step while it is prepared: upper bounds, since with look-ahead the device is ahead
// of it. Valid until the step has been issued.
struct StepBounds {
  int64_t max_query_len = 0;
  int64_t max_context_len = 0;
  const int32_t* query_starts_host = nullptr;  // [num_sequences + 1], exact
  const int32_t* context_lens_host = nullptr;  // [num_sequences]
};

struct StepView {
  int64_t num_tokens = 0;          // padded to a multiple of tp under sequence parallelism
  int64_t local_tokens = 0;        // this rank's rows in sequence regions
  bool sequence_parallel = false;  // a share of the tokens each, not all
  int64_t num_sequences = 0;
  int64_t num_samples = 0;
  Tensor token_ids;     // i32 [num_tokens]
  Tensor positions;     // i32 [num_tokens]
  Tensor kv_slots;      // i32 [num_tokens], negative for padding
  Tensor query_starts;  // i32 [num_sequences + 1]
  Tensor context_lens;  // i32 [num_sequences]
  Tensor block_tables;  // i32 [num_sequences, max_blocks]
  // i32 [num_samples], rows of the tokens whose logits are wanted; none: these rows alone are left
  // (parallel/sampled_rows.h).
  Tensor sample_rows;
  std::span<const KvLayer> kv;  // this stage's layers
  StepBounds bounds;
};

}  // namespace llm_dist::parallel
