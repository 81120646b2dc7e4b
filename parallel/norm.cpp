#include "parallel/norm.h"

namespace llm_dist::parallel {

RmsNorm::RmsNorm(const Context& context, const std::string& name, int64_t hidden_size, float epsilon)
    : context_(context),
      epsilon_(epsilon),
      output_(context.arena->declare("normed", RowKind::kLocalTokens, hidden_size, context.dtype)) {
  context.weights->vectors.push_back({&weight_, hidden_size, {{name + ".weight", 0, hidden_size, 0, 1, 0}}});
}

Tensor RmsNorm::add_and_norm(const Tensor& x, const Tensor& residual) const {
  context_.ops->add_rms_norm(
      {.x = x, .residual = residual, .weight = weight_, .epsilon = epsilon_, .out = x});
  return x;
}

Tensor RmsNorm::norm(const Tensor& residual) const {
  Tensor out = context_.arena->get(output_, residual.dim(0), residual.dim(1));
  context_.ops->rms_norm({.x = residual, .weight = weight_, .epsilon = epsilon_, .out = out});
  return out;
}

}  // namespace llm_dist::parallel
