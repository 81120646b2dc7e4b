// Head-split attention over the paged cache: each rank attends with its own heads; nothing is exchanged.
#pragma once

#include <vector>

#include "parallel/context.h"
#include "parallel/partition.h"
#include "parallel/step_view.h"
#include "src/base/kv_spec.h"

namespace llm_dist::parallel {

// Rotary table shared by a stage's layers: f32 [max_position, head_dim] (kernels/rope_append.h).
class RotaryTable {
 public:
  // inverse_frequencies: head_dim / 2 of them, scaling applied; magnitude multiplies cosines and sines.
  RotaryTable(const Context& context,
              std::vector<double> inverse_frequencies,
              int64_t max_position,
              double magnitude);
  const Tensor& cos_sin() const { return cos_sin_; }

 private:
  Tensor cos_sin_;
};

class HeadParallelAttention {
 public:
  HeadParallelAttention(
      const Context& context, const RotaryTable& rotary, HeadShard heads, int64_t head_dim, int layer);
  // Once a step, for all layers of this shape, before any of them runs or is replayed.
  void plan(const StepView& step) const;
  // qkv: whole [num_tokens, (q + 2 · kv) heads · head_dim] → whole [num_tokens, q heads · head_dim].
  Tensor forward(const Tensor& qkv, const StepView& step) const;

 private:
  Context context_;
  const RotaryTable& rotary_;
  HeadShard heads_;
  int64_t head_dim_;
  size_t layer_;  // counted from the stage's first
  Arena::Id output_;
};

}  // namespace llm_dist::parallel
