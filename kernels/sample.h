// Sampling: penalties, temperature, top-k, top-p, min-p, a draw by Philox, log-probabilities; and greedy over
// vocabulary shards. Every row depends on its own logits and parameters alone, never on the batch.
#pragma once

#include <cstdint>

#include "src/base/logit_rules.h"
#include "src/base/tensor.h"

namespace llm_dist::kernels {

inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxBannedTokens = 16;

// One row's parameters; staged as bytes (u8 [n, sizeof(SampleRow)]).
struct SampleRow {
  int32_t slot = -1;         // of the token history; negative: padding, the record is zeroed
  int32_t position = 0;      // that the new token will have
  int32_t prompt_len = 0;    // history[0, prompt_len) is the prompt, [prompt_len, position) was generated
  float temperature = 1.0f;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty =
      1.0f;  // over prompt and output: logit / p if positive, else · p (Keskar et al. 2019)
  float presence_penalty = 0.0f;   // over the output
  float frequency_penalty = 0.0f;  // over the output, times the count
  uint32_t choice = 0;
  uint64_t seed = 0;  // Philox4x32-10 key; counter (position, choice)
  int32_t num_logprobs =
      -1;  // −1: none; 0: of the token drawn; n: of the n most probable too (≤ kMaxTopLogprobs)
  int32_t num_banned = 0;  // tokens that cannot be drawn now (end tokens before min_tokens)
  int32_t banned[kMaxBannedTokens] = {};
  int32_t num_more_banned =
      0;  // those that do not fit above, at SampleParams::rule_words[more_banned_begin, …)
  int32_t more_banned_begin = 0;
  RuleCounts rules;  // at SampleParams::rule_words[rules_begin, …)
  int32_t rules_begin = 0;
  // n: no n tokens in a row, of prompt and output together, twice (Paulus et al. 2017); 0: off
  int32_t no_repeat_ngram_size = 0;
  int32_t known_token = -1;  // from 0 on: nothing is drawn, the record is of this token

  // Whether argmax_shard knows everything that the row masks.
  bool masks_little() const {
    return num_more_banned == 0 && rules.num_words == 0 && no_repeat_ngram_size == 0;
  }
};

// What one row yields; i32 words so that it travels as i32 [n, kSampleRecordWords].
struct SampleRecord {
  int32_t token = 0;
  float logprob = 0.0f;  // of the model's own distribution: before penalties, temperature and filters
  int32_t num_top = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};
  float top_logprobs[kMaxTopLogprobs] = {};
};
inline constexpr int64_t kSampleRecordWords = sizeof(SampleRecord) / 4;

// Order of effects: biases, masks (banned, not allowed, bans, repeated n-grams), repetition, presence and
// frequency penalties, temperature, top-k, top-p (smallest set whose mass reaches p), min-p (of the largest
// probability), draw. Ties go to the smaller id. Masks that leave nothing: the smallest allowed id, else 0.
//
// What depends on the tokens so far is read from the history, which the step before has written by then: it
// is exact however far ahead the host has planned.
struct SampleParams {
  Tensor logits;  // f32 [num_shards, n, vocab_shard]: entry v of row i is logits[v / vocab_shard, i, v %
                  // vocab_shard]
  int64_t vocab_size = 0;  // entries from here on are padding
  Tensor rows;             // u8 [n, sizeof(SampleRow)]
  Tensor history;          // i32 [num_slots, max_model_len]
  Tensor rule_words;       // i32 [num_words], what rows' rules point into; may be empty
  Tensor records;          // i32 [n, kSampleRecordWords]
};

// The best entry of each row of one vocabulary shard. banned tokens of rows are skipped; every row
// masks_little().
struct ArgmaxShardParams {
  Tensor logits;  // f32 [n, vocab_shard]
  int64_t vocab_begin = 0;
  int64_t vocab_size = 0;
  Tensor rows;  // u8 [n, sizeof(SampleRow)]
  Tensor best;  // f32 [n, 2]: value, id as its bits (int32)
};

// The best of the shards' bests; ties go to the smaller id. Only `token` of a record is set.
struct ArgmaxMergeParams {
  Tensor best;     // f32 [num_shards, n, 2]
  Tensor records;  // i32 [n, kSampleRecordWords]
};

}  // namespace llm_dist::kernels
