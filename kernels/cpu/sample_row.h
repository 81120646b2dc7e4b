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

// What a row points to.
struct RowContext {
  const int32_t* history;      // tokens [0, row.position)
  const int32_t* rule_words;   // of row.rules
  const int32_t* more_banned;  // [row.num_more_banned]
};

// The token that the row draws from s.logits (overwritten), all effects included.
int32_t choose_token(SampleScratch& s, const SampleRow& row, const RowContext& context);

}  // namespace llm_dist::kernels
