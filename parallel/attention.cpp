#include "parallel/attention.h"

#include <cmath>

namespace llm_dist::parallel {

RotaryTable::RotaryTable(const Context& context,
                         std::vector<double> inverse_frequencies,
                         int64_t max_position,
                         double magnitude) {
  auto half = static_cast<int64_t>(inverse_frequencies.size());
  auto fill = [frequencies = std::move(inverse_frequencies), max_position, half, magnitude](float* values) {
    for (int64_t position = 0; position < max_position; ++position) {
      float* row = values + position * 2 * half;
      for (int64_t i = 0; i < half; ++i) {
        double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(i)];
        row[i] = static_cast<float>(std::cos(angle) * magnitude);
        row[half + i] = static_cast<float>(std::sin(angle) * magnitude);
      }
    }
  };
  context.weights->tables.push_back({&cos_sin_, max_position, 2 * half, std::move(fill)});
}

HeadParallelAttention::HeadParallelAttention(
    const Context& context, const RotaryTable& rotary, HeadShard heads, int64_t head_dim, int layer)
    : context_(context),
      rotary_(rotary),
      heads_(heads),
      head_dim_(head_dim),
      layer_(static_cast<size_t>(layer)),
      output_(context.arena->declare("attended", RowKind::kTokens, heads.q.count * head_dim, context.dtype)) {
}

void HeadParallelAttention::plan(const StepView& step) const {
  const Tensor& cache = step.kv[layer_].k;
  context_.ops->attention_plan({.num_sequences = step.num_sequences,
                                .num_tokens = step.num_tokens,
                                .max_query_len = step.bounds.max_query_len,
                                .max_context_len = step.bounds.max_context_len,
                                .query_starts_host = step.bounds.query_starts_host,
                                .context_lens_host = step.bounds.context_lens_host,
                                .query_starts = step.query_starts,
                                .context_lens = step.context_lens,
                                .num_heads = static_cast<int32_t>(heads_.q.count),
                                .num_kv_heads = static_cast<int32_t>(heads_.kv.count),
                                .head_dim = static_cast<int32_t>(head_dim_),
                                .block_size = static_cast<int32_t>(cache.dim(2)),
                                .dtype = context_.dtype,
                                .kv_dtype = cache.dtype});
}

Tensor HeadParallelAttention::forward(const Tensor& qkv, const StepView& step) const {
  const KvLayer& cache = step.kv[layer_];
  auto num_heads = static_cast<int32_t>(heads_.q.count);
  auto num_kv_heads = static_cast<int32_t>(heads_.kv.count);
  context_.ops->rope_append({.qkv = qkv,
                             .positions = step.positions,
                             .kv_slots = step.kv_slots,
                             .cos_sin = rotary_.cos_sin(),
                             .k_cache = cache.k,
                             .v_cache = cache.v,
                             .num_heads = num_heads,
                             .num_kv_heads = num_kv_heads});
  Tensor out = context_.arena->get(output_, step.num_tokens, num_heads * head_dim_);
  context_.ops->attention({.q = qkv.narrow(1, 0, num_heads * head_dim_),
                           .k_cache = cache.k,
                           .v_cache = cache.v,
                           .query_starts = step.query_starts,
                           .context_lens = step.context_lens,
                           .block_tables = step.block_tables,
                           .out = out,
                           .num_heads = num_heads,
                           .num_kv_heads = num_kv_heads,
                           .scale = 1.0f / std::sqrt(static_cast<float>(head_dim_))});
  return out;
}

}  // namespace llm_dist::parallel
