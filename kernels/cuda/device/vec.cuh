// Loads and stores of runs of activations as floats, 16 bytes at a time where the caller has checked that
// they are aligned (kernels/cuda/launch.h).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace llm_dist::kernels {

__device__ inline float to_float_dev(float x) { return x; }
__device__ inline float to_float_dev(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float_dev(__half x) { return __half2float(x); }
__device__ inline float to_float_dev(__nv_fp8_e4m3 x) { return static_cast<float>(x); }

template <typename T>
__device__ T from_float_dev(float x);
template <>
__device__ inline float from_float_dev<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float_dev<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float_dev<__half>(float x) {
  return __float2half_rn(x);
}
// What is beyond ±448 becomes ±448.
template <>
__device__ inline __nv_fp8_e4m3 from_float_dev<__nv_fp8_e4m3>(float x) {
  return __nv_fp8_e4m3(x);
}

// What moves kBytes at once, or in several turns.
template <size_t kBytes>
using Access = std::conditional_t<kBytes == 8, uint2, uint4>;

// kVec consecutive elements: 8 (one or two 16-byte accesses, or one of 8 bytes) or 1.
template <int kVec, typename T>
__device__ inline void load_vec(const T* from, float (&to)[kVec]) {
  if constexpr (kVec == 1) {
    to[0] = to_float_dev(*from);
  } else {
    using Piece = Access<kVec * sizeof(T)>;
    constexpr int kPieces = kVec * sizeof(T) / sizeof(Piece);
    Piece raw[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) raw[i] = reinterpret_cast<const Piece*>(from)[i];
    const T* values = reinterpret_cast<const T*>(raw);
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = to_float_dev(values[i]);
  }
}

template <int kVec, typename T>
__device__ inline void store_vec(const float (&from)[kVec], T* to) {
  if constexpr (kVec == 1) {
    *to = from_float_dev<T>(from[0]);
  } else {
    using Piece = Access<kVec * sizeof(T)>;
    constexpr int kPieces = kVec * sizeof(T) / sizeof(Piece);
    Piece raw[kPieces];
    T* values = reinterpret_cast<T*>(raw);
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = from_float_dev<T>(from[i]);
#pragma unroll
    for (int i = 0; i < kPieces; ++i) reinterpret_cast<Piece*>(to)[i] = raw[i];
  }
}

}  // namespace llm_dist::kernels
