#include "parallel/norm.h"

namespace llm_dist::parallel {

RmsNorm::RmsNorm(const Context& context, const std::string& name, int64_t hidden_size, float epsilon)
    : context_(context),
      epsilon_(epsilon),
      output_(context.arena->declare("normed", RowKind::kTokens, hidden_size, context.dtype)) {
  context.weights->vectors.push_back({&weight_, hidden_size, {{name + ".weight", 0, hidden_size, 0, 1, 0}}});
}

Normed RmsNorm::add_and_norm(const Contribution& x, const Tensor& residual, NormedAs reader) const {
  if (x.is_partial()) return {{sum_and_norm(x, residual)}};
  if (x.is_scattered()) return sum_and_norm_shares(residual, reader);
  Activations out{x.sum()};
  // Elsewhere: a row's codes would stand where another row of x is still to be read.
  if (reader.codes) out = codes_in(context_.arena->get(output_, residual.dim(0), residual.dim(1)), 1);
  context_.ops->add_rms_norm({.x = x.sum(),
                              .residual = residual,
                              .weight = weight_,
                              .epsilon = epsilon_,
                              .out = out.rows,
                              .out_scales = out.scales});
  return {out};
}

Tensor RmsNorm::sum_and_norm(const Contribution& x, const Tensor& residual) const {
  const Tensor& term = x.term();
  if (x.is_sent() && term.dim(0) == 1) {
    const kernels::AddRmsNormParams norm{
        .x = term, .residual = residual, .weight = weight_, .epsilon = epsilon_, .out = term};
    const device::PeerTerms terms = context_.norm_reducer->terms(1, term.dim(1), term.dtype);
    if (terms.size > 0 && context_.ops->add_rms_norm_of_terms({norm, terms})) return term;
  }
  context_.ops->observed(
      kernels::CallKind::kCollective, "all_reduce_add_rms_norm", term.dim(0), [&](device::Stream& stream) {
        context_.norm_reducer->all_reduce_add_rms_norm({.x = term,
                                                        .residual = residual,
                                                        .weight = weight_,
                                                        .epsilon = epsilon_,
                                                        .out = term,
                                                        .sent = x.is_sent()},
                                                       stream);
      });
  return term;
}

Normed RmsNorm::sum_and_norm_shares(const Tensor& residual, NormedAs reader) const {
  comm::NormReducer& reducer = *context_.norm_reducer;
  const int64_t rows = residual.dim(0) * context_.mesh.tp();
  Normed normed{{reducer.shared_out(rows, residual.dim(1), residual.dtype)}};
  if (reader.codes) normed.x = codes_in(normed.x.rows, 1);
  if (reader.shares) {
    normed.handed = reducer.handed_rows(rows, residual.dim(1), residual.dtype, reader.codes);
    CHECK(normed.handed.size > 0, "{} rows that the other ranks keep, and this one cannot", rows);
  }
  context_.ops->observed(
      kernels::CallKind::kCollective, "add_rms_norm_of_shares", rows, [&](device::Stream& stream) {
        reducer.add_rms_norm_of_shares({.residual = residual,
                                        .weight = weight_,
                                        .epsilon = epsilon_,
                                        .out = normed.x.rows,
                                        .out_scales = normed.x.scales,
                                        .kept = normed.handed.size > 0},
                                       stream);
      });
  return normed;
}

Normed RmsNorm::norm(const Tensor& residual) const {
  Tensor out = context_.arena->get(output_, residual.dim(0), residual.dim(1));
  context_.ops->rms_norm({.x = residual, .weight = weight_, .epsilon = epsilon_, .out = out});
  return {{out}};
}

}  // namespace llm_dist::parallel
