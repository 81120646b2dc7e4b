// Logits as keys whose order is that of sampling: a larger key is a larger logit, or an equal one with a
// smaller id. No real entry's key is 0.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"

namespace llm_dist::kernels {

// NaN becomes −inf, +inf the largest float.
__device__ inline float clean_logit(float x) {
  if (x != x) return -INFINITY;
  return fminf(x, 3.402823466e38f);
}

// Ascending with the logit; −0 and 0 are equal.
__device__ inline uint32_t ordered_bits(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float logit_of_bits(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}

__device__ inline uint64_t vocab_key_of_bits(uint32_t ordered, int32_t id) {
  return (static_cast<uint64_t>(ordered) << 32) | static_cast<uint32_t>(~id);
}
__device__ inline uint64_t vocab_key(float logit, int32_t id) {
  return vocab_key_of_bits(ordered_bits(logit), id);
}
__device__ inline float value_of_key(uint64_t key) { return logit_of_bits(static_cast<uint32_t>(key >> 32)); }
__device__ inline int32_t id_of_key(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

}  // namespace llm_dist::kernels
