// One row of logits on its way to a token, without streams and tensors: scratch, the best entries, penalties,
// the draw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/vocab_scan.h"
#include "kernels/sample.h"

namespace llm_dist::kernels {

// A logit and its id as one number that sorts by logit, largest first, then by id, smallest first.
using RankKey = uint64_t;
RankKey rank_key(float logit, int64_t id);
float logit_of(RankKey key);
int32_t id_of(RankKey key);

// The scratch of one row: views of one piece of memory.
struct SampleScratch {
  SampleScratch(std::span<std::byte> memory, int64_t vocab_size);

  int64_t vocab_size;
  int64_t chunks;
  RankKey* keys;      // [vocab_size]
  double* chunk_sum;  // [chunks]
  float* logits;      // [chunks · kVocabChunk]
  float* chunk_max;   // [chunks]
  float* chunk_rank;  // [chunks]
};
constexpr int64_t sample_scratch_bytes(int64_t vocab_size) {
  return 12 * vocab_chunks(vocab_size) * kVocabChunk + 16 * vocab_chunks(vocab_size);
}

// Fills s.keys with the best min(k, vocab_size) entries of s.logits in order and returns how many there are.
// s.chunk_max is up to date.
int64_t select_best(SampleScratch& s, int64_t k);

// banned tokens and penalties, on s.logits. `history`: tokens [0, row.position).
void apply_penalties(SampleScratch& s, const SampleRow& row, const int32_t* history);

// The token drawn from s.logits (overwritten), all effects from temperature on included.
int32_t draw_token(SampleScratch& s, const SampleRow& row);

// The smallest id in [0, vocab_size) that the row allows; 0 where it allows none.
int32_t smallest_allowed(const SampleRow& row, int64_t vocab_size);

}  // namespace llm_dist::kernels
