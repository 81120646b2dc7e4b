// Sampler: the last stage's logits to tokens. Greedy batches reduce each vocabulary shard to its best entry
// first; others exchange logits so that each rank samples its share of the batch over the whole vocabulary.
#pragma once

#include "parallel/context.h"
#include "parallel/partition.h"
#include "src/engine/step_inputs.h"

namespace llm_dist::engine {

class Sampler {
 public:
  Sampler(const parallel::Context& context, int64_t vocab_size);

  // logits: f32 [num_samples, shard]; history: i32 [num_slots, max_model_len].
  // Returns i32 [num_samples, kSampleRecordWords], the same on every rank of the tensor group.
  Tensor sample(const Tensor& logits, const PreparedStep& step, const Tensor& history) const;
  // For a step without samples, in the place of their records: what it holds means nothing.
  Tensor blank_record() const { return context_.arena->get(records_, 1, kernels::kSampleRecordWords); }

 private:
  void gather(const Tensor& mine, const Tensor& all) const;  // over the tensor group
  Tensor sample_greedy(const Tensor& logits, const PreparedStep& step) const;
  Tensor sample_exchanged(const Tensor& logits, const PreparedStep& step, const Tensor& history) const;

  parallel::Context context_;
  int64_t vocab_size_;
  parallel::VocabShard shard_;
  parallel::Arena::Id records_;
  parallel::Arena::Id best_;
  parallel::Arena::Id exchanged_;
};

}  // namespace llm_dist::engine
