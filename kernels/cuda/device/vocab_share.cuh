// What a block of a team has of a row that is sampled (sample.cu): its share of the vocabulary, and what an
// entry weighs.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/vocab_key.cuh"
#include "kernels/cuda/sample_memory.h"

namespace llm_dist::kernels {

inline constexpr int kSampleThreads = 512;  // of a block

// A block's share of a row: the keys (ordered_bits()) of ids [first, end), after what the row's parameters do
// to them.
struct VocabShare {
  uint32_t* keys;
  uint32_t* counts;
  int vocab;
  int first;
  int end;
  RowTeam& team;

  __device__ uint32_t& key(int v) const { return keys[v - first]; }
  __device__ float logit(int v) const { return logit_of_bits(key(v)); }
  __device__ void set(int v, float logit) const { key(v) = ordered_bits(logit); }
  __device__ bool has(int v) const { return v >= first && v < end; }

  // Ids of this thread, interleaved with the other threads'.
  template <typename Run>
  __device__ void each(Run&& run) const {
#pragma unroll 4
    for (int v = first + static_cast<int>(threadIdx.x); v < end; v += kSampleThreads) run(v);
  }
  // Ids of this thread, consecutive, so that threads follow one another in id order; an odd number, for the
  // sake of shared memory's banks.
  __device__ int run_length() const { return (end - first + kSampleThreads - 1) / kSampleThreads | 1; }
  __device__ int first_of_run() const {
    return min(end, first + static_cast<int>(threadIdx.x) * run_length());
  }
  __device__ int end_of_run() const { return min(end, first_of_run() + run_length()); }
};

// Of keys, as parts of the most probable one's.
struct Masses {
  float max;
  float inverse_temperature = 1;
  float min_p = 0;  // what has a smaller weight has none, and what is no number

  __device__ uint64_t operator()(uint32_t key) const {
    const float weight = expf((logit_of_bits(key) - max) * inverse_temperature);
    return weight >= min_p ? __float2ull_rn(weight * static_cast<float>(uint64_t{1} << kMassBits)) : 0;
  }
};

}  // namespace llm_dist::kernels
