#include "parallel/sequence_region.h"

namespace llm_dist::parallel {
SequenceRegion::SequenceRegion(const Context& context, int64_t hidden_size)
    : context_(context), hidden_size_(hidden_size) {
  if (!context.mesh.sequence_parallel()) return;
  whole_ = context.arena->declare("gathered", RowKind::kTokens, hidden_size, context.dtype);
  local_ = context.arena->declare("scattered", RowKind::kLocalTokens, hidden_size, context.dtype);
}

Tensor SequenceRegion::gather_to_whole(const Tensor& local, const StepView& step) const {
  // The norm of shares hands out all rows.
  if (!step.sequence_parallel || local.dim(0) == step.num_tokens) return local;
  Tensor whole = context_.arena->get(whole_, step.num_tokens, hidden_size_);
  context_.ops->observed(
      kernels::CallKind::kCollective, "all_gather", step.num_tokens, [&](device::Stream& stream) {
        context_.tensor_group->all_gather(local, whole, stream);
      });
  return whole;
}

Tensor SequenceRegion::reduce_to_local(const Tensor& partial, const StepView& step) const {
  if (context_.mesh.tp() == 1) return partial;
  if (!step.sequence_parallel) return all_reduce_rows(context_, partial);
  Tensor local = context_.arena->get(local_, step.local_tokens, hidden_size_);
  reduce_scatter(partial, local, step);
  return local;
}

void SequenceRegion::reduce_scatter(const Tensor& partial, const Tensor& local, const StepView& step) const {
  context_.ops->observed(
      kernels::CallKind::kCollective, "reduce_scatter", step.num_tokens, [&](device::Stream& stream) {
        context_.tensor_group->reduce_scatter(partial, local, comm::ReduceOp::kSum, stream);
      });
}

bool SequenceRegion::is_summed_by_norm(int64_t rows, DType dtype, const StepView& step) const {
  const comm::NormReducer* reducer = context_.norm_reducer;
  if (context_.mesh.tp() == 1 || reducer == nullptr) return false;
  return step.sequence_parallel ? reducer->takes_shares(rows, hidden_size_, dtype)
                                : reducer->takes(rows, hidden_size_, dtype);
}

// With stages a term may be a stage's last, which no norm takes.
device::PeerTerms SequenceRegion::terms_for_norm(int64_t rows, DType dtype, const StepView& step) const {
  if (context_.mesh.pp() > 1 || step.sequence_parallel || !is_summed_by_norm(rows, dtype, step)) return {};
  return context_.norm_reducer->terms(rows, hidden_size_, dtype);
}

Contribution SequenceRegion::contribute(const Tensor& partial, const StepView& step) const {
  if (is_summed_by_norm(partial.dim(0), partial.dtype, step)) return Contribution::partial(partial);
  return Contribution::finished(reduce_to_local(partial, step));
}

}  // namespace llm_dist::parallel
