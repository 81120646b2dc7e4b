#include "parallel/sequence_region.h"

namespace llm_dist::parallel {
SequenceRegion::SequenceRegion(const Context& context, int64_t hidden_size)
    : context_(context), hidden_size_(hidden_size) {
  if (!context.mesh.sequence_parallel()) return;
  whole_ = context.arena->declare("gathered", RowKind::kTokens, hidden_size, context.dtype);
  local_ = context.arena->declare("scattered", RowKind::kLocalTokens, hidden_size, context.dtype);
}

Tensor SequenceRegion::gather_to_whole(const Tensor& local, const StepView& step) const {
  if (!context_.mesh.sequence_parallel()) return local;
  Tensor whole = context_.arena->get(whole_, step.num_tokens, hidden_size_);
  context_.ops->observed(
      kernels::CallKind::kCollective, "all_gather", step.num_tokens, [&](device::Stream& stream) {
        context_.tensor_group->all_gather(local, whole, stream);
      });
  return whole;
}

Tensor SequenceRegion::reduce_to_local(const Tensor& partial, const StepView& step) const {
  if (context_.mesh.tp() == 1) return partial;
  if (!context_.mesh.sequence_parallel()) return all_reduce_rows(context_, partial);
  Tensor local = context_.arena->get(local_, step.local_tokens, hidden_size_);
  context_.ops->observed(
      kernels::CallKind::kCollective, "reduce_scatter", step.num_tokens, [&](device::Stream& stream) {
        context_.tensor_group->reduce_scatter(partial, local, comm::ReduceOp::kSum, stream);
      });
  return local;
}

Contribution SequenceRegion::contribute(const Tensor& partial, const StepView& step) const {
  const bool summed_by_norm = context_.mesh.tp() > 1 && !context_.mesh.sequence_parallel() &&
                              context_.norm_reducer != nullptr &&
                              context_.norm_reducer->takes(partial.dim(0), hidden_size_, partial.dtype);
  if (summed_by_norm) return Contribution::partial(partial);
  return Contribution::finished(reduce_to_local(partial, step));
}

}  // namespace llm_dist::parallel
