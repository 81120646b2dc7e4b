#include "parallel/partition.h"

#include <algorithm>

namespace llm_dist::parallel {

Range split_even(int64_t total, int parts, int index, int64_t granule) {
  CHECK(total % granule == 0 && index >= 0 && index < parts,
        "{} in {} parts of granule {}",
        total,
        parts,
        granule);
  int64_t granules = total / granule;
  int64_t base = granules / parts;
  int64_t larger = granules % parts;
  int64_t begin = index * base + std::min<int64_t>(index, larger);
  return {begin * granule, (base + (index < larger ? 1 : 0)) * granule};
}

HeadShard shard_heads(int64_t num_heads, int64_t num_kv_heads, int tp, int rank_tp) {
  CHECK(
      num_kv_heads > 0 && num_heads % num_kv_heads == 0, "{} heads on {} KV heads", num_heads, num_kv_heads);
  CHECK_LE(tp, num_heads);
  int64_t group = num_heads / num_kv_heads;
  if (tp <= num_kv_heads) {
    Range kv = split_even(num_kv_heads, tp, rank_tp);
    return {{kv.begin * group, kv.count * group}, kv};
  }
  for (int64_t kv = 0; kv < num_kv_heads; ++kv) {
    Range ranks = split_even(tp, static_cast<int>(num_kv_heads), static_cast<int>(kv));
    if (rank_tp >= ranks.end()) continue;
    Range q = split_even(group, static_cast<int>(ranks.count), static_cast<int>(rank_tp - ranks.begin));
    return {{kv * group + q.begin, q.count}, {kv, 1}};
  }
  CHECK(false, "rank {} of {} has no KV head", rank_tp, tp);
}

VocabShard shard_vocab(int64_t vocab_size, int tp, int rank_tp) {
  int64_t padded = (vocab_size + tp - 1) / tp;
  int64_t begin = std::min(vocab_size, padded * rank_tp);
  return {begin, std::min(padded, vocab_size - begin), padded};
}

Range stage_layers(int64_t num_layers, int pp, int stage, const std::vector<int64_t>& split) {
  std::vector<int64_t> counts = split;
  if (counts.empty()) {
    counts.assign(static_cast<size_t>(pp), num_layers / pp);
    // Middle stages first, then the first one; the last stage, which also has the head, comes last.
    int64_t rest = num_layers % pp;
    for (int i = 1; i <= pp && rest > 0; ++i, --rest) {
      size_t taker = i < pp - 1 ? static_cast<size_t>(i) : (i == pp - 1 ? 0 : static_cast<size_t>(pp - 1));
      ++counts[taker];
    }
  }
  CHECK_EQ(counts.size(), static_cast<size_t>(pp));
  int64_t begin = 0;
  for (int s = 0; s < stage; ++s) begin += counts[static_cast<size_t>(s)];
  return {begin, counts[static_cast<size_t>(stage)]};
}

}  // namespace llm_dist::parallel
