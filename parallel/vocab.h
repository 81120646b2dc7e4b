// The vocabulary split over a tensor group: embedding at the entrance, head at the exit. Tied models share
// one weight.
#pragma once

#include <string>

#include "parallel/partition.h"
#include "parallel/sequence_region.h"

namespace llm_dist::parallel {

// One rank's rows of an embedding or head matrix [vocab, hidden].
class VocabWeight {
 public:
  VocabWeight(const Context& context, const std::string& tensor, int64_t vocab_size, int64_t hidden_size);
  const Weight& weight() const { return weight_; }
  const VocabShard& shard() const { return shard_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t hidden_size() const { return hidden_size_; }

 private:
  int64_t vocab_size_;
  int64_t hidden_size_;
  VocabShard shard_;
  Weight weight_;
};

class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(const Context& context, const VocabWeight& table);
  // Begins the residual stream, local [local_tokens, hidden], with the tokens' rows; where the first norm
  // makes sums over the ranks, with zeros, and the rows are what it is to add.
  Contribution forward(const Tensor& residual, const StepView& step) const;

 private:
  void look_up(const Tensor& ids, const Tensor& out) const;
  Contribution scatter(const StepView& step) const;

  Context context_;
  const VocabWeight& table_;
  SequenceRegion region_;
  Arena::Id output_;
};

class VocabParallelHead {
 public:
  VocabParallelHead(const Context& context, const VocabWeight& table);
  // x: local [local_tokens, hidden], normalised → f32 logits of this rank's shard [num_samples, shard.padded]
  // for the rows that are sampled: the step's sample_rows, all where it has none.
  Tensor forward(const Tensor& x, const StepView& step) const;
  const VocabWeight& table() const { return table_; }

 private:
  Context context_;
  const VocabWeight& table_;
  SequenceRegion region_;
  Arena::Id sampled_;
  Arena::Id logits_;
};

}  // namespace llm_dist::parallel
