#include "parallel/linear.h"

#include <span>

namespace llm_dist::parallel {

// Layers are registered by address: a layer object must not move after construction, so owners hold them in
// place.
ColumnParallelLinear::ColumnParallelLinear(const Context& context,
                                           const std::string& output,
                                           const std::vector<ColumnPart>& parts,
                                           int64_t input_size,
                                           bool bias)
    : context_(context), region_(context, input_size) {
  MatrixSlot matrix{.target = &weight_, .cols = input_size, .normed_as = &all_take_, .has_bias = bias};
  VectorSlot vector{.target = &bias_};
  for (const ColumnPart& part : parts) {
    matrix.pieces.push_back(
        {part.name + ".weight", part.rows.begin, part.rows.count, 0, input_size, output_size_});
    vector.pieces.push_back({part.name + ".bias", part.rows.begin, part.rows.count, 0, 1, output_size_});
    output_size_ += part.rows.count;
  }
  matrix.rows = vector.size = output_size_;
  matrix.is_linear = true;
  output_ = context.arena->declare(output, RowKind::kTokens, output_size_, context.dtype);
  context.weights->matrices.push_back(std::move(matrix));
  if (bias) context.weights->vectors.push_back(std::move(vector));
}

Tensor ColumnParallelLinear::forward(const Normed& x, const StepView& step) const {
  Tensor whole = region_.gather_to_whole(x.x.rows, step);
  Tensor out = context_.arena->get(output_, step.num_tokens, output_size_);
  context_.ops->linear({.x = whole, .weight = weight_, .bias = bias_, .out = out, .x_scales = x.x.scales},
                       x.handed);
  return out;
}

NormedAs ColumnParallelLinear::takes(const StepView& step) const {
  // Local rows that are gathered apart from the norm are gathered in 16 bits.
  const bool all_there =
      !step.sequence_parallel || region_.is_summed_by_norm(step.num_tokens, context_.dtype, step);
  NormedAs takes = all_take_;
  takes.codes = takes.codes && all_there && weight_.k <= kernels::kMostCodedHidden &&
                context_.ops->takes_codes(weight_, static_cast<bool>(bias_), context_.dtype, step.num_tokens);
  takes.shares = takes.shares && step.sequence_parallel &&
                 step.num_tokens % (context_.mesh.tp() * kernels::kHandedRows) == 0 &&
                 (takes.codes || weight_.scheme != WeightScheme::kF8E4M3);
  return takes;
}

GatedColumnParallelLinear::GatedColumnParallelLinear(
    const Context& context, const ColumnPart& gate, const ColumnPart& up, int64_t input_size, bool bias)
    : merged_(context, "gate_up", {gate, up}, input_size, bias),
      output_size_(gate.rows.count),
      output_(context.arena->declare("activated", RowKind::kTokens, output_size_, context.dtype)) {
  CHECK_EQ(gate.rows.count, up.rows.count);
}

Activations GatedColumnParallelLinear::forward(const Normed& x,
                                               const RowParallelLinear& reader,
                                               const StepView& step) const {
  const Context& context = merged_.context_;
  Activations out{context.arena->get(output_, step.num_tokens, output_size_)};
  const bool has_bias = merged_.bias_ || reader.bias_;
  if (context.ops->gives_codes(merged_.weight_, reader.weight_, has_bias, context.dtype, step.num_tokens))
    out = codes_in(out.rows, output_size_ / kernels::kCodeGroup);
  context.ops->linear_silu_and_mul(
      {.x = merged_.region_.gather_to_whole(x.x.rows, step),
       .weight = merged_.weight_,
       .bias = merged_.bias_,
       .gate_up = context.arena->get(merged_.output_, step.num_tokens, merged_.output_size_),
       .out = out.rows,
       .x_scales = x.x.scales,
       .out_scales = out.scales},
      x.handed);
  return out;
}

RowParallelLinear::RowParallelLinear(
    const Context& context, const std::string& name, Range input, int64_t output_size, bool bias)
    : context_(context), region_(context, output_size), output_size_(output_size) {
  output_ = context.arena->declare("partial", RowKind::kTokens, output_size, context.dtype);
  const bool has_bias = bias && context.mesh.rank_tp() == 0;
  context.weights->matrices.push_back(
      {.target = &weight_,
       .rows = output_size,
       .cols = input.count,
       .pieces = {{name + ".weight", 0, output_size, input.begin, input.count, 0}},
       .is_linear = true,
       .makes_terms = true,
       .has_bias = has_bias});
  if (has_bias)
    context.weights->vectors.push_back({&bias_, output_size, {{name + ".bias", 0, output_size, 0, 1, 0}}});
}

Tensor RowParallelLinear::term(const StepView& step) const {
  Tensor term = context_.arena->get(output_, step.num_tokens, output_size_);
  if (context_.mesh.tp() == 1 || step.sequence_parallel) return term;
  const std::span<std::byte> faster = context_.tensor_group->sum_memory();
  if (static_cast<size_t>(term.bytes()) <= faster.size()) term.data = faster.data();
  return term;
}

// Ranks begin with different ones' rows, so that no link has the terms of two at a time.
Contribution RowParallelLinear::scatter(const Activations& x, const StepView& step) const {
  const int tp = context_.mesh.tp();
  const int rank = context_.mesh.rank_tp();
  kernels::LinearSharesParams params{.x = x.rows,
                                     .weight = weight_,
                                     .bias = bias_,
                                     .outs = {},
                                     .num_outs = tp,
                                     .first = (rank + 1) % tp,
                                     .x_scales = x.scales};
  for (int other = 0; other < tp; ++other) {
    params.outs[static_cast<size_t>(other)] =
        context_.norm_reducer->shared_term(other, step.num_tokens, output_size_, context_.dtype);
  }
  context_.ops->linear_shares(params);
  return Contribution::scattered(params.outs[static_cast<size_t>(rank)]);
}

Contribution RowParallelLinear::forward(const Activations& x, const StepView& step) const {
  if (step.sequence_parallel && region_.is_summed_by_norm(step.num_tokens, context_.dtype, step))
    return scatter(x, step);
  const Tensor out = term(step);
  const kernels::LinearParams product{
      .x = x.rows, .weight = weight_, .bias = bias_, .out = out, .x_scales = x.scales};
  const device::PeerTerms terms = region_.terms_for_norm(step.num_tokens, context_.dtype, step);
  if (terms.size > 0) return Contribution::partial(out, context_.ops->linear_terms({product, terms}));
  context_.ops->linear(product);
  return region_.contribute(out, step);
}

}  // namespace llm_dist::parallel
