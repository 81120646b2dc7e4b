// Two elements of 16 bits in a register, the first in its lower half.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace llm_dist::kernels {

__device__ inline uint32_t pack_pair(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ inline uint32_t pack_pair(__half, float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// And back.
__device__ inline float2 pair_of(__nv_bfloat16, uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline float2 pair_of(__half, uint32_t word) {
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

// Eight elements in four registers, each multiplied by `factor` first.
template <typename T>
__device__ inline uint4 pack_eight(const float (&values)[8], float factor) {
  uint4 packed;
  auto* words = reinterpret_cast<uint32_t*>(&packed);
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = pack_pair(T(), values[2 * i] * factor, values[2 * i + 1] * factor);
  return packed;
}
template <typename T>
__device__ inline void unpack_eight(uint4 raw, float (&values)[8]) {
  const auto* words = reinterpret_cast<const uint32_t*>(&raw);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = pair_of(T(), words[i]);
    values[2 * i] = pair.x;
    values[2 * i + 1] = pair.y;
  }
}

}  // namespace llm_dist::kernels
