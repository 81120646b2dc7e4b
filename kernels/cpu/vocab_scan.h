// Vectorised passes over one row of logits. Rows are cut into chunks of kVocabChunk entries and padded with
// −inf to a whole number of them; sums are taken chunk by chunk in id order, so that they do not depend on
// how the vocabulary was sharded.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

inline constexpr int64_t kVocabChunk = 128;
constexpr int64_t vocab_chunks(int64_t vocab_size) { return (vocab_size + kVocabChunk - 1) / kVocabChunk; }

// Copies n logits; NaN becomes −inf, +inf the largest float.
void copy_clean(const float* from, float* to, int64_t n);

// chunk_max[c] = the largest entry of chunk c; returns the largest of all.
float scan_chunk_maxima(const float* x, int64_t chunks, float* chunk_max);

struct SoftmaxScan {
  float max;                  // finite
  float inverse_temperature;  // finite
  float min_weight;           // weights below are dropped
};

// weight(x) = exp((x − max) · inverse_temperature). Returns Σ weights.
double sum_weights(const float* x, int64_t chunks, const SoftmaxScan& scan);
// The same, writing the weights over x and each chunk's sum to chunk_sum.
double replace_by_weights(float* x, int64_t chunks, const SoftmaxScan& scan, double* chunk_sum);

}  // namespace llm_dist::kernels
