// Shard arithmetic: which heads, features, vocabulary rows and layers a rank owns. Pure functions, no device.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::parallel {

struct Range {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
  bool operator==(const Range&) const = default;
};

// Part `index` of `total` items cut into `parts` runs that differ by one granule at most, the larger ones
// first. total must be a multiple of granule.
Range split_even(int64_t total, int parts, int index, int64_t granule = 1);

// Attention heads of one rank. Grouped-query heads stay with their KV head:
//   tp ≤ num_kv_heads: KV heads are cut into tp runs, each with its query heads;
//   tp > num_kv_heads: each KV head is replicated on a run of ranks, which share its query heads.
// So a rank's query heads always divide evenly over its KV heads.
struct HeadShard {
  Range q;
  Range kv;
  bool operator==(const HeadShard&) const = default;
};
HeadShard shard_heads(int64_t num_heads, int64_t num_kv_heads, int tp, int rank_tp);

// Vocabulary rows of one rank: every rank has ceil(vocab / tp) rows, of which those past the end are padding.
struct VocabShard {
  int64_t begin = 0;
  int64_t count = 0;   // real rows
  int64_t padded = 0;  // rows of the shard's tensors, equal on all ranks
};
VocabShard shard_vocab(int64_t vocab_size, int tp, int rank_tp);

// Layers of a stage; the remainder goes to the middle stages first, since the first and last ones also hold
// the embedding and the head. `split`, when given, names each stage's number of layers.
Range stage_layers(int64_t num_layers, int pp, int stage, const std::vector<int64_t>& split = {});

}  // namespace llm_dist::parallel
