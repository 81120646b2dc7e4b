// Weights as a thread loads them, 16 bytes at a time, and their elements as floats.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/device/pairs.cuh"

namespace llm_dist::kernels {

// Elements of a 16-byte load of W.
template <typename W>
constexpr int kLoadWidth = 16 / sizeof(W);

// Elements 2 i and 2 i + 1 of a load, as floats.
template <typename W>
__device__ inline float2 weight_pair(const uint4& load, int i) {
  const auto* words = reinterpret_cast<const uint32_t*>(&load);
  if constexpr (sizeof(W) == 2) return pair_of(W(), words[i]);
  const auto codes = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
}

}  // namespace llm_dist::kernels
