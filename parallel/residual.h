// The residual stream: the one activation that lives through all of a stage's layers, held in local rows.
#pragma once

#include "parallel/sequence_region.h"

namespace llm_dist::parallel {

// What goes from block to block: the stream, and the contribution of what stands in front, a block or the
// embedding, which the next norm adds to it.
struct Hidden {
  Tensor residual;  // [local_tokens, hidden]
  Contribution x;   // none where another stage ends in front, or the stream has the embedding already
};

class ResidualStream {
 public:
  ResidualStream(const Context& context, int64_t hidden_size)
      : context_(context),
        hidden_size_(hidden_size),
        region_(context, hidden_size),
        residual_(context.arena->declare("residual", RowKind::kLocalTokens, hidden_size, context.dtype)) {}

  // The stream before anything stands in it.
  Hidden entrance(const StepView& step) const {
    return {context_.arena->get(residual_, step.local_tokens, hidden_size_), {}};
  }
  // Everything added up: what the next stage starts from.
  Tensor finish(const Hidden& hidden, const StepView& step) const {
    if (!hidden.x) return hidden.residual;
    if (hidden.x.is_scattered()) {
      context_.ops->observed(
          kernels::CallKind::kCollective, "add_shares", step.num_tokens, [&](device::Stream& stream) {
            context_.norm_reducer->add_shares(hidden.residual, stream);
          });
      return hidden.residual;
    }
    CHECK(!hidden.x.is_sent(), "terms that no norm takes");
    const Tensor x = hidden.x.is_partial() ? region_.reduce_to_local(hidden.x.term(), step) : hidden.x.sum();
    context_.ops->add({.a = hidden.residual, .b = x});
    return hidden.residual;
  }

 private:
  Context context_;
  int64_t hidden_size_;
  SequenceRegion region_;
  Arena::Id residual_;
};

}  // namespace llm_dist::parallel
