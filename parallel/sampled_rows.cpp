#include "parallel/sampled_rows.h"

namespace llm_dist::parallel {
namespace {

bool drops_rows(const StepView& step) { return step.num_samples < step.num_tokens; }

}  // namespace

SampledRows::SampledRows(const Context& context, int64_t hidden_size, int64_t attended_size)
    : context_(context),
      region_(context, hidden_size),
      attended_(context.arena->declare("sampled_attended", RowKind::kSamples, attended_size, context.dtype)),
      residual_(context.arena->declare("sampled_residual", RowKind::kSamples, hidden_size, context.dtype)) {}

StepView SampledRows::behind_attention(const StepView& step) {
  StepView narrowed = step;
  if (!drops_rows(step)) return narrowed;
  narrowed.num_tokens = narrowed.local_tokens = step.num_samples;
  narrowed.sequence_parallel = false;
  narrowed.sample_rows = {};
  return narrowed;
}

Tensor SampledRows::attended(const Tensor& attended, const StepView& step) const {
  return drops_rows(step) ? take(attended_, attended, step) : attended;
}

Tensor SampledRows::residual(const Tensor& residual, const StepView& step) const {
  return drops_rows(step) ? take(residual_, region_.gather_to_whole(residual, step), step) : residual;
}

Tensor SampledRows::take(Arena::Id to, const Tensor& whole, const StepView& step) const {
  Tensor rows = context_.arena->get(to, step.num_samples, whole.dim(1));
  context_.ops->gather_rows({.x = whole, .rows = step.sample_rows, .out = rows});
  return rows;
}

}  // namespace llm_dist::parallel
