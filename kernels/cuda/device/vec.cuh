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

// kVec consecutive elements as they lie in memory: 8 (one or two 16-byte accesses, or one of 8 bytes) or 1.
template <typename T, int kVec>
struct Packed {
  using Piece = std::conditional_t<kVec == 1, T, Access<kVec * sizeof(T)>>;
  static constexpr int kPieces = kVec * sizeof(T) / sizeof(Piece);
  Piece pieces[kPieces];

  __device__ void load(const T* from) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) pieces[i] = reinterpret_cast<const Piece*>(from)[i];
  }
  __device__ void store(T* to) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) reinterpret_cast<Piece*>(to)[i] = pieces[i];
  }
  __device__ void unpack(float (&to)[kVec]) const {
    const T* values = reinterpret_cast<const T*>(pieces);
#pragma unroll
    for (int i = 0; i < kVec; ++i) to[i] = to_float_dev(values[i]);
  }
  __device__ void pack(const float (&from)[kVec]) {
    T* values = reinterpret_cast<T*>(pieces);
#pragma unroll
    for (int i = 0; i < kVec; ++i) values[i] = from_float_dev<T>(from[i]);
  }
};

template <int kVec, typename T>
__device__ inline void load_vec(const T* from, float (&to)[kVec]) {
  Packed<T, kVec> packed;
  packed.load(from);
  packed.unpack(to);
}

template <int kVec, typename T>
__device__ inline void store_vec(const float (&from)[kVec], T* to) {
  Packed<T, kVec> packed;
  packed.pack(from);
  packed.store(to);
}

}  // namespace llm_dist::kernels
