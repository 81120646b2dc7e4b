// Where activations change between the two ways a tensor group holds them:
//   whole   every rank has all tokens' rows [num_tokens, features]
//   local   each rank has its own run of rows (sequence parallelism: Korthikanti et al. 2022, §4.2.2); in
//   steps
//           without it, local is whole
// Residuals live in local; linear layers and attention in whole. Norms take local rows, and hand out local
// ones or, where they gather in the same kernel, whole ones.
#pragma once

#include "parallel/contribution.h"
#include "parallel/step_view.h"

namespace llm_dist::parallel {

class SequenceRegion {
 public:
  SequenceRegion(const Context& context, int64_t hidden_size);

  // Local rows → whole: all-gather, or nothing to do.
  Tensor gather_to_whole(const Tensor& local, const StepView& step) const;
  // Partial sums over all tokens → local rows of the sum: reduce-scatter, or all-reduce in place.
  Tensor reduce_to_local(const Tensor& partial, const StepView& step) const;
  // The same for what goes into the residual stream next: the sum may be left to the norm there.
  Contribution contribute(const Tensor& partial, const StepView& step) const;
  // The reduce-scatter alone, to `local`.
  void reduce_scatter(const Tensor& partial, const Tensor& local, const StepView& step) const;
  bool is_summed_by_norm(int64_t rows, DType dtype, const StepView& step) const;
  // Where the ranks' terms of a sum that is left to the norm may be sent by what makes them. Nowhere (size
  // 0): the norm sends them.
  device::PeerTerms terms_for_norm(int64_t rows, DType dtype, const StepView& step) const;

 private:
  Context context_;
  int64_t hidden_size_;
  Arena::Id whole_ = -1;
  Arena::Id local_ = -1;
};

}  // namespace llm_dist::parallel
