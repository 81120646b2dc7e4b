#include "src/engine/sampler.h"

namespace llm_dist::engine {

using kernels::CallKind;
using parallel::RowKind;

Sampler::Sampler(const parallel::Context& context, int64_t vocab_size)
    : context_(context),
      vocab_size_(vocab_size),
      shard_(parallel::shard_vocab(vocab_size, context.mesh.tp(), context.mesh.rank_tp())),
      records_(
          context.arena->declare("records", RowKind::kSamples, kernels::kSampleRecordWords, DType::kI32)),
      best_(context.arena->declare("best", RowKind::kSamples, 2 * context.mesh.tp(), DType::kF32)),
      exchanged_(-1) {
  if (context.mesh.tp() > 1) {
    exchanged_ = context.arena->declare("logits_exchanged", RowKind::kSamples, shard_.padded, DType::kF32);
  }
}

Tensor Sampler::sample(const Tensor& logits, const PreparedStep& step, const Tensor& history) const {
  return step.greedy_only ? sample_greedy(logits, step) : sample_exchanged(logits, step, history);
}

void Sampler::gather(const Tensor& mine, const Tensor& all) const {
  if (context_.mesh.tp() == 1) return;
  context_.ops->observed(CallKind::kCollective, "gather_samples", mine.dim(0), [&](device::Stream& stream) {
    context_.tensor_group->all_gather(mine, all, stream);
  });
}

Tensor Sampler::sample_greedy(const Tensor& logits, const PreparedStep& step) const {
  int64_t n = step.view.num_samples;
  int tp = context_.mesh.tp();
  Tensor best = context_.arena->get(best_, n, 2 * tp).reshaped({tp, n, 2});
  Tensor mine = best.rows(context_.mesh.rank_tp(), 1).reshaped({n, 2});
  context_.ops->argmax_shard({.logits = logits,
                              .vocab_begin = shard_.begin,
                              .vocab_size = vocab_size_,
                              .rows = step.sample_rows_params,
                              .best = mine});
  gather(mine, best);
  Tensor records = context_.arena->get(records_, n, kernels::kSampleRecordWords);
  context_.ops->argmax_merge({.best = best, .records = records});
  return records;
}

Tensor Sampler::sample_exchanged(const Tensor& logits,
                                 const PreparedStep& step,
                                 const Tensor& history) const {
  int64_t n = step.view.num_samples;
  int tp = context_.mesh.tp();
  int64_t share = n / tp;
  Tensor records = context_.arena->get(records_, n, kernels::kSampleRecordWords);
  Tensor by_shard = logits;
  if (tp > 1) {
    by_shard = context_.arena->get(exchanged_, n, shard_.padded);
    context_.ops->observed(CallKind::kCollective, "all_to_all", n, [&](device::Stream& stream) {
      context_.tensor_group->all_to_all(logits, by_shard, stream);
    });
  }
  Tensor mine = records.rows(context_.mesh.rank_tp() * share, share);
  context_.ops->sample({.logits = by_shard.reshaped({tp, share, shard_.padded}),
                        .vocab_size = vocab_size_,
                        .rows = step.sample_rows_params.rows(context_.mesh.rank_tp() * share, share),
                        .history = history,
                        .rule_words = step.rule_words,
                        .records = mine});
  gather(mine, records);
  return records;
}

}  // namespace llm_dist::engine
