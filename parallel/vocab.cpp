#include "parallel/vocab.h"

namespace llm_dist::parallel {

VocabWeight::VocabWeight(const Context& context,
                         const std::string& tensor,
                         int64_t vocab_size,
                         int64_t hidden_size)
    : vocab_size_(vocab_size),
      hidden_size_(hidden_size),
      shard_(shard_vocab(vocab_size, context.mesh.tp(), context.mesh.rank_tp())) {
  MatrixSlot slot{.target = &weight_, .rows = shard_.padded, .cols = hidden_size};
  if (shard_.count > 0) slot.pieces.push_back({tensor, shard_.begin, shard_.count, 0, hidden_size, 0});
  context.weights->matrices.push_back(std::move(slot));
}

VocabParallelEmbedding::VocabParallelEmbedding(const Context& context, const VocabWeight& table)
    : context_(context),
      table_(table),
      region_(context, table.hidden_size()),
      output_(context.arena->declare("partial", RowKind::kTokens, table.hidden_size(), context.dtype)) {}

Contribution VocabParallelEmbedding::forward(const Tensor& residual, const StepView& step) const {
  const bool by_norm = region_.is_summed_by_norm(step.num_tokens, context_.dtype, step);
  if (!by_norm && !step.sequence_parallel) {
    look_up(step.token_ids, residual);
    if (context_.mesh.tp() > 1) all_reduce_rows(context_, residual);
    return {};
  }
  if (by_norm) {
    context_.ops->observed(
        kernels::CallKind::kCopy, "clear_residual", residual.dim(0), [&](device::Stream& stream) {
          stream.fill_zero(residual);
        });
    if (step.sequence_parallel) return scatter(step);
  }
  const Tensor term = context_.arena->get(output_, step.num_tokens, table_.hidden_size());
  look_up(step.token_ids, term);
  if (by_norm) return Contribution::partial(term);
  region_.reduce_scatter(term, residual, step);
  return {};
}

void VocabParallelEmbedding::look_up(const Tensor& ids, const Tensor& out) const {
  context_.ops->embedding(
      {.ids = ids, .table = table_.weight(), .vocab_begin = table_.shard().begin, .out = out});
}

// As RowParallelLinear does: the other ranks' rows first, and each rank begins with another one's.
Contribution VocabParallelEmbedding::scatter(const StepView& step) const {
  const int tp = context_.mesh.tp();
  Tensor own;
  for (int behind = 1; behind <= tp; ++behind) {
    const int rank = (context_.mesh.rank_tp() + behind) % tp;
    own = context_.norm_reducer->shared_term(rank, step.num_tokens, table_.hidden_size(), context_.dtype);
    look_up(step.token_ids.narrow(0, rank * step.local_tokens, step.local_tokens), own);
  }
  return Contribution::scattered(own);
}

VocabParallelHead::VocabParallelHead(const Context& context, const VocabWeight& table)
    : context_(context),
      table_(table),
      region_(context, table.hidden_size()),
      sampled_(context.arena->declare("sampled", RowKind::kSamples, table.hidden_size(), context.dtype)),
      logits_(context.arena->declare("logits", RowKind::kSamples, table.shard().padded, DType::kF32)) {}

Tensor VocabParallelHead::forward(const Tensor& x, const StepView& step) const {
  Tensor sampled = region_.gather_to_whole(x, step);
  if (step.sample_rows) {
    const Tensor whole = sampled;
    sampled = context_.arena->get(sampled_, step.num_samples, table_.hidden_size());
    context_.ops->gather_rows({.x = whole, .rows = step.sample_rows, .out = sampled});
  }
  Tensor logits = context_.arena->get(logits_, step.num_samples, table_.shard().padded);
  context_.ops->linear({.x = sampled, .weight = table_.weight(), .out = logits});
  return logits;
}

}  // namespace llm_dist::parallel
