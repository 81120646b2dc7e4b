// Model: one rank's part of a decoder: its stage's layers, its shard of each. The runner owns the loop over
// the blocks.
#pragma once

#include <memory>
#include <string_view>

#include "parallel/context.h"
#include "parallel/residual.h"
#include "parallel/step_view.h"
#include "parallel/vocab.h"
#include "src/base/kv_spec.h"
#include "src/checkpoint/model_config.h"

namespace llm_dist::model {

class Model {
 public:
  virtual ~Model() = default;
  // What this rank caches a token; block_size and dtype are the engine's to set.
  virtual KvSpec kv_spec() const = 0;
  virtual int num_blocks() const = 0;

  // Once a step, before everything else: prepares what the layers share. Never part of a graph.
  virtual void plan(const parallel::StepView& step) = 0;
  // First stage: token ids → the residual stream, or its terms for the first norm to add up.
  virtual parallel::Hidden embed(const parallel::StepView& step) = 0;
  // Other stages: the residual stream, still to be filled with what the previous one finished with.
  virtual parallel::Hidden entrance(const parallel::StepView& step) = 0;
  // Block `index` of this stage, from 0.
  virtual void block(int index, parallel::Hidden& hidden, const parallel::StepView& step) = 0;
  // Stages before the last: what the next one starts from, [local_tokens, hidden].
  virtual Tensor leave(const parallel::Hidden& hidden, const parallel::StepView& step) = 0;
  // Last stage: f32 logits of this rank's vocabulary shard, [num_samples, vocab_shard.padded].
  virtual Tensor head(parallel::Hidden& hidden, const parallel::StepView& step) = 0;
};

struct ModelOptions {
  checkpoint::ModelConfig config;
  int64_t max_model_len = 0;  // rows of the rotary table
  parallel::Range layers;     // of this stage
  int64_t intermediate_granule =
      1;                         // where the MLP's inner features may be cut (quantized weights: their block)
  bool prune_last_layer = true;  // to the rows that are sampled (parallel/sampled_rows.h)
};

}  // namespace llm_dist::model
