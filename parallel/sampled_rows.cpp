#include "parallel/sampled_rows.h"

namespace llm_dist::parallel {
namespace {

bool drops_rows(const StepView& step) { return step.num_samples < step.num_tokens; }

}  // namespace

SampledRows::SampledRows(const Context& context, int64_t hidden_size, int64_t attended_size)
    : context_(context),
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
  if (!drops_rows(step)) return attended;
  const Tensor rows = context_.arena->get(attended_, step.num_samples, attended.dim(1));
  context_.ops->gather_rows({.x = attended, .rows = step.sample_rows, .out = rows});
  return rows;
}

Tensor SampledRows::residual(const Tensor& residual, const StepView& step) const {
  if (!drops_rows(step)) return residual;
  const Tensor rows = context_.arena->get(residual_, step.num_samples, residual.dim(1));
  const int64_t begin = step.sequence_parallel ? context_.mesh.rank_tp() * step.local_tokens : 0;
  context_.ops->gather_rows(
      {.x = residual, .x_begin = begin, .x_whole = step.num_tokens, .rows = step.sample_rows, .out = rows});
  return step.sequence_parallel ? all_reduce_rows(context_, rows) : rows;
}

}  // namespace llm_dist::parallel
