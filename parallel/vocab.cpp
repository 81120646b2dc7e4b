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

Tensor VocabParallelEmbedding::forward(const StepView& step) const {
  Tensor out = context_.arena->get(output_, step.num_tokens, table_.hidden_size());
  context_.ops->embedding(
      {.ids = step.token_ids, .table = table_.weight(), .vocab_begin = table_.shard().begin, .out = out});
  return region_.reduce_to_local(out, step);
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
