#include "kernels/cpu/sample_row.h"

#include <algorithm>
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
  float temperature;

  double weight(int64_t i) const {
    return std::exp(static_cast<double>((logit_of(keys[i]) - max) / temperature));
  }
  double mass() const {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += weight(i);
    return total;
  }
};

// The smallest prefix whose weights reach `target`; all of it if they do not (`reached` says).
int64_t prefix_reaching(const Nucleus& nucleus, double target, bool& reached) {
  double mass = 0;
  for (int64_t i = 0; i < nucleus.count; ++i) {
    mass += nucleus.weight(i);
    if (mass >= target) {
      reached = true;
      return i + 1;
    }
  }
  reached = false;
  return nucleus.count;
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
  double before = 0;
  int32_t last = 0;
  for (int64_t c = 0; c < s.chunks; ++c) {
    if (s.chunk_sum[c] <= 0) continue;
    const bool inside = before + s.chunk_sum[c] > target;
    const int64_t begin = c * kVocabChunk;
    double mass = before;
    // A chunk's sum and its entries one by one may differ in the last bits: then its last entry is meant.
    for (int64_t i = begin; i < begin + kVocabChunk; ++i) {
      if (s.logits[i] <= 0) continue;
      last = static_cast<int32_t>(i);
      if (!inside) continue;
      mass += static_cast<double>(s.logits[i]);
      if (mass > target) return last;
    }
    if (inside) return last;
    before += s.chunk_sum[c];
  }
  return last;
}

// Top-k and top-p. Without top-k the nucleus is looked for among ever more candidates: a model's own
// distribution rarely spreads over more than a few hundred.
Nucleus select_nucleus(SampleScratch& s, const SampleRow& row, float max) {
  const bool has_top_k = row.top_k > 0 && row.top_k < s.vocab_size;
  const bool has_top_p = row.top_p < 1.0f;
  const double top_p = static_cast<double>(row.top_p);
  double total = 0;
  if (!has_top_k) total = sum_weights(s.logits, s.chunks, {max, row.temperature, 0.0f});
  for (int64_t k = has_top_k ? row.top_k : 256;; k *= 16) {
    Nucleus nucleus{s.keys, select_best(s, k), max, row.temperature};
    if (!has_top_p) return nucleus;
    if (has_top_k) total = nucleus.mass();
    bool reached = false;
    nucleus.count = prefix_reaching(nucleus, top_p * total, reached);
    if (reached || has_top_k || k >= s.vocab_size) return nucleus;
  }
}

int32_t best_token(const SampleScratch& s, float max) {
  const int64_t chunk = std::find(s.chunk_max, s.chunk_max + s.chunks, max) - s.chunk_max;
  const float* begin = s.logits + chunk * kVocabChunk;
  return static_cast<int32_t>(std::find(begin, begin + kVocabChunk, max) - s.logits);
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
  int64_t count = 0;
  for (int64_t c = 0; c < s.chunks; ++c) {
    if (s.chunk_max[c] < threshold) continue;
    const int64_t end = std::min((c + 1) * kVocabChunk, s.vocab_size);
    for (int64_t i = c * kVocabChunk; i < end; ++i) {
      if (s.logits[i] >= threshold) s.keys[count++] = rank_key(s.logits[i], i);
    }
  }
  if (k < count) std::nth_element(s.keys, s.keys + k, s.keys + count);
  std::sort(s.keys, s.keys + k);
  return k;
}

void apply_penalties(SampleScratch& s, const SampleRow& row, const int32_t* history) {
  for (int32_t i = 0; i < row.num_banned; ++i) {
    const int32_t id = row.banned[i];
    if (id >= 0 && id < s.vocab_size) s.logits[id] = kMinusInfinity;
  }
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

int32_t draw_token(SampleScratch& s, const SampleRow& row) {
  const float max = scan_chunk_maxima(s.logits, s.chunks, s.chunk_max);
  if (max == kMinusInfinity) return smallest_allowed(row, s.vocab_size);
  if (!(row.temperature > 0)) return best_token(s, max);
  const double uniform = sampling_uniform(row.seed, static_cast<uint32_t>(row.position), row.choice);
  const float min_p = std::clamp(row.min_p, 0.0f, 1.0f);
  const bool ranked = (row.top_k > 0 && row.top_k < s.vocab_size) || row.top_p < 1.0f;
  if (!ranked) {
    const double total = replace_by_weights(s.logits, s.chunks, {max, row.temperature, min_p}, s.chunk_sum);
    return draw_in_id_order(s, uniform * total);
  }
  Nucleus nucleus = select_nucleus(s, row, max);
  if (min_p > 0) nucleus.count = prefix_above(nucleus, static_cast<double>(min_p));
  return draw_from(nucleus, uniform);
}

int32_t smallest_allowed(const SampleRow& row, int64_t vocab_size) {
  const int32_t* banned_end = row.banned + row.num_banned;
  for (int32_t id = 0; id < vocab_size; ++id) {
    if (std::find(row.banned, banned_end, id) == banned_end) return id;
  }
  return 0;
}

}  // namespace llm_dist::kernels
