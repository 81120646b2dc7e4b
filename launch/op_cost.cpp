#include "launch/op_cost.h"

namespace llm_dist::launch {
namespace {

using namespace kernels;

double bytes_of(const Tensor& tensor) { return tensor ? static_cast<double>(tensor.bytes()) : 0.0; }

OpCost cost(const EmbeddingParams& p) {
  auto rows = static_cast<double>(p.ids.numel());
  return {.bytes = rows * static_cast<double>(row_bytes(p.table.scheme, p.table.k)) + bytes_of(p.ids) +
                   bytes_of(p.out)};
}
OpCost cost(const RmsNormParams& p) {
  return {.bytes = bytes_of(p.x) + bytes_of(p.weight) + bytes_of(p.out)};
}
OpCost cost(const AddRmsNormParams& p) {
  return {.bytes = bytes_of(p.x) + 2 * bytes_of(p.residual) + bytes_of(p.weight) + bytes_of(p.out)};
}
OpCost cost(const AddParams& p) { return {.bytes = 2 * bytes_of(p.a) + bytes_of(p.b)}; }
OpCost cost(const LinearParams& p) {
  double products = static_cast<double>(p.x.dim(0)) * static_cast<double>(p.weight.n * p.weight.k);
  return {.bytes = bytes_of(p.x) + static_cast<double>(p.weight.bytes()) + bytes_of(p.bias) + bytes_of(p.out),
          .flops = 2 * products,
          .f8_weight = p.weight.scheme == WeightScheme::kF8E4M3};
}
OpCost cost(const LinearSharesParams& p) {
  const OpCost run = cost(p.run(0));
  const double weight = static_cast<double>(p.weight.bytes()) + bytes_of(p.bias);
  return {.bytes = p.num_outs * (run.bytes - weight) + weight,
          .flops = p.num_outs * run.flops,
          .f8_weight = run.f8_weight};
}
OpCost cost(const LinearSiluAndMulParams& p) {
  return cost(LinearParams{.x = p.x, .weight = p.weight, .bias = p.bias, .out = p.out});
}
OpCost cost(const SiluAndMulParams& p) { return {.bytes = bytes_of(p.gate_up) + bytes_of(p.out)}; }
// Q and K are read and written, V is read; K and V go to the cache.
OpCost cost(const RopeAppendParams& p) {
  auto heads = static_cast<double>(p.num_heads + 2 * p.num_kv_heads);
  double kv = bytes_of(p.qkv) * 2 * p.num_kv_heads / heads;
  double q = bytes_of(p.qkv) - kv;
  double kept =
      kv * static_cast<double>(dtype_bytes(p.k_cache.dtype)) / static_cast<double>(dtype_bytes(p.qkv.dtype));
  auto table = static_cast<double>(p.qkv.dim(0) * p.cos_sin.dim(1) * dtype_bytes(DType::kF32));
  return {.bytes = 2 * q + kv + kept + table + bytes_of(p.positions) + bytes_of(p.kv_slots)};
}
OpCost cost(const AttentionPlanParams& p) {
  return {.bytes = bytes_of(p.query_starts) + bytes_of(p.context_lens)};
}
OpCost cost(const AttentionParams& p) { return {.bytes = bytes_of(p.q) + bytes_of(p.out)}; }
OpCost cost(const GatherTokensParams& p) {
  return {.bytes = bytes_of(p.slots) + bytes_of(p.positions) + 2 * bytes_of(p.ids)};
}
OpCost cost(const ScatterTokensParams& p) { return {.bytes = 4 * bytes_of(p.slots)}; }
OpCost cost(const GatherRowsParams& p) { return {.bytes = bytes_of(p.rows) + 2 * bytes_of(p.out)}; }
OpCost cost(const SampleParams& p) {
  return {.bytes = bytes_of(p.logits) + bytes_of(p.rows) + bytes_of(p.records)};
}
OpCost cost(const ArgmaxShardParams& p) {
  return {.bytes = bytes_of(p.logits) + bytes_of(p.rows) + bytes_of(p.best)};
}
OpCost cost(const ArgmaxMergeParams& p) { return {.bytes = bytes_of(p.best) + bytes_of(p.records)}; }

}  // namespace

OpCost OpCosts::of(const OpParams& params) {
  if (const auto* plan = std::get_if<const AttentionPlanParams*>(&params)) {
    const AttentionPlanParams& p = **plan;
    context_tokens_ = visible_ = 0;
    for (int64_t s = 0; s < p.num_sequences; ++s) {
      double queries = p.query_starts_host[s + 1] - p.query_starts_host[s];
      double context = p.context_lens_host[s];
      if (queries == 0) continue;
      context_tokens_ += context;
      visible_ += queries * context - queries * (queries - 1) / 2;
    }
  }
  OpCost sum = std::visit(
      [](const auto& p) -> OpCost {
        if constexpr (std::is_same_v<std::decay_t<decltype(p)>, std::monostate>) {
          return {};
        } else {
          return cost(*p);
        }
      },
      params);
  if (const auto* attention = std::get_if<const AttentionParams*>(&params)) {
    const AttentionParams& p = **attention;
    auto head_dim = static_cast<double>(p.k_cache.dim(3));
    auto width = static_cast<double>(dtype_bytes(p.k_cache.dtype));
    sum.bytes += context_tokens_ * 2 * p.num_kv_heads * head_dim * width;
    sum.flops = visible_ * 4 * p.num_heads * head_dim;
  }
  return sum;
}

}  // namespace llm_dist::launch
