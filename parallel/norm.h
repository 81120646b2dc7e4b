// RMSNorm over local rows, with the residual stream.
#pragma once

#include <string>

#include "parallel/contribution.h"
#include "parallel/step_view.h"

namespace llm_dist::parallel {

class RmsNorm {
 public:
  RmsNorm(const Context& context, const std::string& name, int64_t hidden_size, float epsilon);
  // residual ← residual + x, local rows; returns the norm of it. Makes x's sum over the tensor group first
  // where that is still to be done; under sequence parallelism it then returns all rows.
  Tensor add_and_norm(const Contribution& x, const Tensor& residual) const;
  // The norm of the residual stream alone, where nothing is to be added.
  Tensor norm(const Tensor& residual) const;

 private:
  Tensor sum_and_norm(const Contribution& x, const Tensor& residual) const;
  Tensor sum_and_norm_shares(const Tensor& residual) const;

  Context context_;
  float epsilon_;
  Arena::Id output_;
  Tensor weight_;
};

}  // namespace llm_dist::parallel
