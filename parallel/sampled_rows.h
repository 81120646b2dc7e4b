// SampledRows: no layer behind the last attention reads the rows of tokens whose logits nobody wants. A step
// of prompts goes on with the others: few of them, since a prompt's last token alone is sampled.
#pragma once

#include "parallel/contribution.h"
#include "parallel/step_view.h"

namespace llm_dist::parallel {

class SampledRows {
 public:
  // attended_size: of this rank's output of the attention.
  SampledRows(const Context& context, int64_t hidden_size, int64_t attended_size);

  // What lies behind the last attention works on this: the step itself where no row can be left out; else one
  // whose rows are the sampled ones, the same on every rank, with no sample_rows to look for.
  static StepView behind_attention(const StepView& step);

  // The same for what crosses from there: the attention's output, whole [num_tokens, attended_size], and the
  // residual stream, whose rows the tensor group gathers under sequence parallelism: a collective.
  Tensor attended(const Tensor& attended, const StepView& step) const;
  Tensor residual(const Tensor& residual, const StepView& step) const;

 private:
  Context context_;
  Arena::Id attended_;
  Arena::Id residual_;
};

}  // namespace llm_dist::parallel
