#include "kernels/cpu/sample_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/philox.h"
#include "src/base/check.h"

namespace llm_dist::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A set of candidates in rank order, cut to a prefix, and the weights' arithmetic.
struct Nucleus {
  const RankKey* keys;
  int64_t count;
  float max;
  float inverse_temperature;

  double weight(int64_t i) const {
    return std::exp(static_cast<double>((logit_of(keys[i]) - max) * inverse_temperature));
  }
  double mass() const {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += weight(i);
    return total;
  }
};

// Cuts to the smallest prefix whose weights reach `target`; false where all together do not.
bool cut_to_mass(Nucleus& nucleus, double target) {
  double mass = 0;
  for (int64_t i = 0; i < nucleus.count; ++i) {
    mass += nucleus.weight(i);
    if (mass < target) continue;
    nucleus.count = i + 1;
    return true;
  }
  return false;
}

int64_t prefix_above(const Nucleus& nucleus, double min_weight) {
  int64_t n = 1;
  while (n < nucleus.count && nucleus.weight(n) >= min_weight) ++n;
  return n;
}

int32_t draw_from(const Nucleus& nucleus, double uniform) {
  const double target = uniform * nucleus.mass();
  double mass = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < nucleus.count; ++i) {
    const double weight = nucleus.weight(i);
    if (weight <= 0) break;
    mass += weight;
    last = i;
    if (mass > target) break;
  }
  return id_of(nucleus.keys[last]);
}

// Inverse of the cumulative distribution in id order, over weights and their chunk sums.
int32_t draw_in_id_order(const SampleScratch& s, double target) {
  int64_t chunk = 0;
  double before = 0;  // the weights of the chunks before `chunk`
  double mass = 0;
  for (int64_t c = 0; c < s.chunks && mass <= target; ++c) {
    if (s.chunk_sum[c] <= 0) continue;
    chunk = c;
    before = mass;
    mass += s.chunk_sum[c];
  }
  // A chunk's sum and its entries one by one may differ in the last bits: then its last entry is meant.
  int64_t last = chunk * kVocabChunk;
  for (int64_t i = chunk * kVocabChunk; i < (chunk + 1) * kVocabChunk && before <= target; ++i) {
    if (s.logits[i] <= 0) continue;
    last = i;
    before += static_cast<double>(s.logits[i]);
  }
  return static_cast<int32_t>(last);
}

// Entries of at least `threshold` become s.keys, unsorted; returns how many.
int64_t collect_from(SampleScratch& s, float threshold) {
  int64_t count = 0;
  for (int64_t c = 0; c < s.chunks; ++c) {
    if (s.chunk_max[c] < threshold) continue;
    const int64_t end = std::min((c + 1) * kVocabChunk, s.vocab_size);
    for (int64_t i = c * kVocabChunk; i < end; ++i) {
      if (s.logits[i] >= threshold) s.keys[count++] = rank_key(s.logits[i], i);
    }
  }
  return count;
}

// A logit from which on the weights should sum to `target` and little more, by a histogram; −inf where the
// mass lies too deep for it.
float threshold_holding(const SampleScratch& s, float max, float inverse_temperature, double target) {
  constexpr int kBuckets = 1024;
  constexpr float kPerUnit = 32;  // buckets a unit of the exponent
  std::array<int32_t, kBuckets> counts{};
  for (int64_t i = 0; i < s.vocab_size; ++i) {
    const float depth = (max - s.logits[i]) * inverse_temperature * kPerUnit;
    if (depth < static_cast<float>(kBuckets)) ++counts[static_cast<size_t>(depth)];
  }
  constexpr double kMargin = 1.001;  // for entries that do not lie in the middle of their bucket
  double mass = 0;
  for (int b = 0; b < kBuckets; ++b) {
    mass += counts[static_cast<size_t>(b)] * std::exp(-(b + 0.5) / static_cast<double>(kPerUnit));
    if (mass >= kMargin * target) return max - static_cast<float>(b + 1) / kPerUnit / inverse_temperature;
  }
  return kMinusInfinity;
}

// The smallest set whose mass reaches top_p. A model's own distribution rarely spreads over more than a
// hundred tokens, so those are tried first.
Nucleus top_p_of_all(SampleScratch& s, double top_p, float max, float inverse_temperature) {
  const double target = top_p * sum_weights(s.logits, s.chunks, {max, inverse_temperature, 0.0f});
  Nucleus nucleus{s.keys, select_best(s, 128), max, inverse_temperature};
  if (cut_to_mass(nucleus, target)) return nucleus;
  for (float threshold : {threshold_holding(s, max, inverse_temperature, target), kMinusInfinity}) {
    nucleus.count = collect_from(s, threshold);
    std::sort(s.keys, s.keys + nucleus.count);
    if (cut_to_mass(nucleus, target)) break;
  }
  return nucleus;
}

// Top-k, then top-p of what that left.
Nucleus select_nucleus(SampleScratch& s, const SampleRow& row, float max, float inverse_temperature) {
  const auto top_p = static_cast<double>(row.top_p);
  if (row.top_k <= 0 || row.top_k >= s.vocab_size) return top_p_of_all(s, top_p, max, inverse_temperature);
  Nucleus nucleus{s.keys, select_best(s, row.top_k), max, inverse_temperature};
  if (top_p < 1) cut_to_mass(nucleus, top_p * nucleus.mass());
  return nucleus;
}

int32_t best_token(const SampleScratch& s, float max) {
  const int64_t chunk = std::find(s.chunk_max, s.chunk_max + s.chunks, max) - s.chunk_max;
  const float* begin = s.logits + chunk * kVocabChunk;
  return static_cast<int32_t>(std::find(begin, begin + kVocabChunk, max) - s.logits);
}

void mask(SampleScratch& s, int32_t id) {
  if (id >= 0 && id < s.vocab_size) s.logits[id] = kMinusInfinity;
}

void apply_biases(SampleScratch& s, const SampleRow& row, const int32_t* rule_words) {
  const int32_t* bias = rule_words + row.rules.num_allowed;
  for (int32_t i = 0; i < row.rules.num_biases; ++i, bias += 2) {
    if (bias[0] >= 0 && bias[0] < s.vocab_size) s.logits[bias[0]] += std::bit_cast<float>(bias[1]);
  }
}

// Everything between the ids, which ascend.
void mask_all_but(SampleScratch& s, const int32_t* allowed, int32_t count) {
  int64_t next = 0;
  for (int32_t i = 0; i < count && allowed[i] < s.vocab_size; ++i) {
    std::fill(s.logits + next, s.logits + allowed[i], kMinusInfinity);
    next = allowed[i] + 1;
  }
  std::fill(s.logits + next, s.logits + s.vocab_size, kMinusInfinity);
}

void apply_bans(SampleScratch& s, const SampleRow& row, const RowContext& context) {
  const int32_t* ban = context.rule_words + row.rules.num_allowed + 2 * row.rules.num_biases;
  for (int32_t i = 0; i < row.rules.num_bans; ++i, ban += 2) {
    const int32_t* run = context.rule_words + ban[0];
    const int32_t before = ban[1] - 1;
    if (row.position - row.prompt_len < before) continue;
    if (std::equal(run, run + before, context.history + row.position - before)) mask(s, run[before]);
  }
}

// Every token that has followed the last n − 1 tokens before.
void mask_repeated_ngrams(SampleScratch& s, const SampleRow& row, const int32_t* history) {
  const int32_t n = row.no_repeat_ngram_size;
  if (n <= 0 || row.position < n) return;
  const int32_t* end = history + row.position;
  const int32_t* tail = end - (n - 1);
  for (const int32_t* at = history; at + n <= end; ++at) {
    if (std::equal(tail, end, at)) mask(s, at[n - 1]);
  }
}

void apply_masks(SampleScratch& s, const SampleRow& row, const RowContext& context) {
  for (int32_t i = 0; i < row.num_banned; ++i) mask(s, row.banned[i]);
  for (int32_t i = 0; i < row.num_more_banned; ++i) mask(s, context.more_banned[i]);
  if (row.rules.num_allowed > 0) mask_all_but(s, context.rule_words, row.rules.num_allowed);
  apply_bans(s, row, context);
  mask_repeated_ngrams(s, row, context.history);
}

// Where there is nothing to choose by.
int32_t smallest_unmasked(SampleScratch& s, const SampleRow& row, const RowContext& context) {
  std::fill(s.logits, s.logits + s.vocab_size, 0.0f);
  apply_masks(s, row, context);
  const float max = scan_chunk_maxima(s.logits, s.chunks, s.chunk_max);
  if (max != kMinusInfinity) return best_token(s, max);
  return row.rules.num_allowed > 0 ? context.rule_words[0] : 0;
}

void apply_penalties(SampleScratch& s, const SampleRow& row, const int32_t* history) {
  if (row.repetition_penalty == 1.0f && row.presence_penalty == 0.0f && row.frequency_penalty == 0.0f) return;
  // counts[id]: occurrences in the output, shifted by the bit that says it occurred at all. They live where
  // candidates will, since no candidate is chosen yet.
  auto* counts = reinterpret_cast<uint32_t*>(s.keys);
  std::memset(counts, 0, static_cast<size_t>(s.vocab_size) * sizeof(uint32_t));
  const auto known = [&](int32_t id) { return id >= 0 && id < s.vocab_size; };
  for (int32_t i = 0; i < row.position; ++i) {
    const int32_t id = history[i];
    if (known(id)) counts[id] = (counts[id] | 1u) + (i >= row.prompt_len ? 2u : 0u);
  }
  for (int32_t i = 0; i < row.position; ++i) {
    const int32_t id = history[i];
    if (!known(id) || counts[id] == 0) continue;
    const auto in_output = static_cast<float>(counts[id] >> 1);
    counts[id] = 0;  // each token once
    float logit = s.logits[id];
    if (row.repetition_penalty != 1.0f) {
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (in_output > 0) logit -= row.presence_penalty + row.frequency_penalty * in_output;
    copy_clean(&logit, &s.logits[id], 1);
  }
}

}  // namespace

RankKey rank_key(float logit, int64_t id) {
  const auto bits = std::bit_cast<uint32_t>(logit + 0.0f);  // −0 and 0 are a tie
  const uint32_t ascending = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(id);
}

float logit_of(RankKey key) {
  const auto ascending = ~static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ascending & 0x80000000u) != 0 ? ascending & 0x7fffffffu : ~ascending);
}

int32_t id_of(RankKey key) { return static_cast<int32_t>(key & 0xffffffffu); }

SampleScratch::SampleScratch(std::span<std::byte> memory, int64_t vocab)
    : vocab_size(vocab), chunks(vocab_chunks(vocab)) {
  CHECK_LE(sample_scratch_bytes(vocab), static_cast<int64_t>(memory.size()));
  keys = reinterpret_cast<RankKey*>(memory.data());
  chunk_sum = reinterpret_cast<double*>(keys + chunks * kVocabChunk);
  logits = reinterpret_cast<float*>(chunk_sum + chunks);
  chunk_max = logits + chunks * kVocabChunk;
  chunk_rank = chunk_max + chunks;
}

int64_t select_best(SampleScratch& s, int64_t k) {
  k = std::min(k, s.vocab_size);
  // The k-th largest of the chunks' maxima bounds the k-th largest entry from below.
  float threshold = kMinusInfinity;
  if (k < s.chunks) {
    std::copy_n(s.chunk_max, s.chunks, s.chunk_rank);
    std::nth_element(s.chunk_rank, s.chunk_rank + (k - 1), s.chunk_rank + s.chunks, std::greater<>());
    threshold = s.chunk_rank[k - 1];
  }
  const int64_t count = collect_from(s, threshold);
  if (k < count) std::nth_element(s.keys, s.keys + k, s.keys + count);
  std::sort(s.keys, s.keys + k);
  return k;
}

int32_t choose_token(SampleScratch& s, const SampleRow& row, const RowContext& context) {
  apply_biases(s, row, context.rule_words);
  apply_masks(s, row, context);
  apply_penalties(s, row, context.history);
  const float max = scan_chunk_maxima(s.logits, s.chunks, s.chunk_max);
  if (max == kMinusInfinity) return smallest_unmasked(s, row, context);
  if (!(row.temperature > 0)) return best_token(s, max);
  const double uniform = sampling_uniform(row.seed, static_cast<uint32_t>(row.position), row.choice);
  const float inverse_temperature = std::min(1 / row.temperature, std::numeric_limits<float>::max());
  const float min_p = std::clamp(row.min_p, 0.0f, 1.0f);
  const bool ranked = (row.top_k > 0 && row.top_k < s.vocab_size) || row.top_p < 1.0f;
  if (!ranked) {
    const double total =
        replace_by_weights(s.logits, s.chunks, {max, inverse_temperature, min_p}, s.chunk_sum);
    return draw_in_id_order(s, uniform * total);
  }
  Nucleus nucleus = select_nucleus(s, row, max, inverse_temperature);
  if (min_p > 0) nucleus.count = prefix_above(nucleus, static_cast<double>(min_p));
  return draw_from(nucleus, uniform);
}

}  // namespace llm_dist::kernels
