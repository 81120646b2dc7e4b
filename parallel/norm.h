// RMSNorm over local rows, with the residual stream.
#pragma once

#include <string>

#include "parallel/contribution.h"
#include "parallel/step_view.h"

namespace llm_dist::parallel {

// Rows [num_tokens, hidden], or local ones. handed: only this rank's share of them is there, and the product
// that reads them is to hand it to the others.
struct Normed {
  Tensor rows;
  device::HandedRows handed;
};

class RmsNorm {
 public:
  RmsNorm(const Context& context, const std::string& name, int64_t hidden_size, float epsilon);
  // residual ← residual + x, local rows; returns the norm of it. Makes x's sum over the tensor group first
  // where that is still to be done; under sequence parallelism it then returns all rows. reader_hands: what
  // reads them can hand them among the ranks (ColumnParallelLinear::hands_rows).
  Normed add_and_norm(const Contribution& x, const Tensor& residual, bool reader_hands = false) const;
  // The norm of the residual stream alone, where nothing is to be added.
  Normed norm(const Tensor& residual) const;

 private:
  Tensor sum_and_norm(const Contribution& x, const Tensor& residual) const;
  Normed sum_and_norm_shares(const Tensor& residual, bool reader_hands) const;

  Context context_;
  float epsilon_;
  Arena::Id output_;
  Tensor weight_;
};

}  // namespace llm_dist::parallel
