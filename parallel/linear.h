// Linear layers that split over a tensor group (Shoeybi et al. 2019, §3): column-parallel ones split output
// features and take whole activations; row-parallel ones split input features and sum over the group.
#pragma once

#include <string>
#include <vector>

#include "parallel/norm.h"
#include "parallel/partition.h"
#include "parallel/sequence_region.h"

namespace llm_dist::parallel {

// Rows of one checkpoint matrix that a merged column-parallel layer takes on this rank.
struct ColumnPart {
  std::string name;  // "model.layers.0.self_attn.q_proj" (.weight, .bias)
  Range rows;
};

// y[local features] = x · Wᵀ, x gathered first under sequence parallelism. Several matrices that read the
// same input are merged into one.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(const Context& context,
                       const std::string& output,
                       const std::vector<ColumnPart>& parts,
                       int64_t input_size,
                       bool bias);
  // x: local [local_tokens, input_size] → whole [num_tokens, local features].
  Tensor forward(const Normed& x, const StepView& step) const;
  // What x may be in such a step, on all ranks.
  NormedAs takes(const StepView& step) const;
  int64_t output_size() const { return output_size_; }

 private:
  friend class GatedColumnParallelLinear;  // another op over the same weights
  Context context_;
  SequenceRegion region_;
  int64_t output_size_ = 0;
  Arena::Id output_ = -1;
  Weight weight_;
  Tensor bias_;
  NormedAs all_take_;  // what ranks have agreed on, for steps of many rows (MatrixSlot)
};

class RowParallelLinear;

// The gate-up projection with its activation: y[local features] = silu(x · Gᵀ) · (x · Uᵀ).
class GatedColumnParallelLinear {
 public:
  // gate, up: rows of two checkpoint matrices, as many of each.
  GatedColumnParallelLinear(
      const Context& context, const ColumnPart& gate, const ColumnPart& up, int64_t input_size, bool bias);
  // x: local [local_tokens, input_size] → whole [num_tokens, local features], for `reader`, which may take
  // codes.
  Activations forward(const Normed& x, const RowParallelLinear& reader, const StepView& step) const;
  NormedAs takes(const StepView& step) const { return merged_.takes(step); }

 private:
  ColumnParallelLinear merged_;
  int64_t output_size_;
  Arena::Id output_;
};

// y = Σ over ranks of x[local features] · W[:, local]ᵀ.
class RowParallelLinear {
 public:
  // input: the columns of the checkpoint matrix that this rank's features of x meet.
  RowParallelLinear(
      const Context& context, const std::string& name, Range input, int64_t output_size, bool bias);
  // x → local [local_tokens, output_size], or this rank's term of it.
  Contribution forward(const Activations& x, const StepView& step) const;

 private:
  friend class GatedColumnParallelLinear;  // asks what becomes of its rows
  // Where this rank's term stands: in the group's own memory, if it has some for these rows.
  Tensor term(const StepView& step) const;
  // Each rank's rows of the term to where the group wants them.
  Contribution scatter(const Activations& x, const StepView& step) const;

  Context context_;
  SequenceRegion region_;
  int64_t output_size_;
  Arena::Id output_ = -1;
  Weight weight_;
  Tensor bias_;  // on the first rank only, so that the sum has it once
};

}  // namespace llm_dist::parallel
