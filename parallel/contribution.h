// Contribution: what a row-parallel layer adds to the residual stream, and whether the sum over the tensor
// group that it stands for has been made. Where one kernel makes the sum, the addition and the norm
// (comm/norm_reducer.h), the layer leaves its sum to the norm.
#pragma once

#include "parallel/context.h"

namespace llm_dist::parallel {

class Contribution {
 public:
  Contribution() = default;  // none
  // Local rows [local_tokens, hidden], to be added as they are.
  static Contribution finished(const Tensor& sum) { return {sum, false}; }
  // This rank's term [num_tokens, hidden] of a sum that is still to be made.
  static Contribution partial(const Tensor& term) { return {term, true}; }

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  bool is_partial() const { return partial_; }
  const Tensor& sum() const {
    CHECK(!partial_, "a rank's term {} taken for the sum", tensor_.to_string());
    return tensor_;
  }
  const Tensor& term() const {
    CHECK(partial_, "a sum {} taken for a rank's term", tensor_.to_string());
    return tensor_;
  }

 private:
  Contribution(const Tensor& tensor, bool partial) : tensor_(tensor), partial_(partial) {}

  Tensor tensor_;
  bool partial_ = false;
};

// Sums rows over the tensor group, in place; returns them.
Tensor all_reduce_rows(const Context& context, const Tensor& rows);

}  // namespace llm_dist::parallel
