// RMSNorm over local rows, with the residual stream.
#pragma once

#include <string>

#include "parallel/activations.h"
#include "parallel/contribution.h"
#include "parallel/step_view.h"

namespace llm_dist::parallel {

class RmsNorm {
 public:
  RmsNorm(const Context& context, const std::string& name, int64_t hidden_size, float epsilon);
  // residual ← residual + x, local rows; returns the norm of it. Makes x's sum over the tensor group first
  // where that is still to be done; under sequence parallelism it then returns all rows. reader: what takes
  // them (ColumnParallelLinear::takes).
  Normed add_and_norm(const Contribution& x, const Tensor& residual, NormedAs reader = {}) const;
  // The norm of the residual stream alone, where nothing is to be added.
  Normed norm(const Tensor& residual) const;

 private:
  Tensor sum_and_norm(const Contribution& x, const Tensor& residual) const;
  Normed sum_and_norm_shares(const Tensor& residual, NormedAs reader) const;

  Context context_;
  float epsilon_;
  // Of all tokens: behind the last attention a step of shares has few rows, which are whole.
  Arena::Id output_;
  Tensor weight_;
};

}  // namespace llm_dist::parallel
