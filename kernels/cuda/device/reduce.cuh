// Reductions over a warp and a block, in an order that depends on nothing but the block's size.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

constexpr unsigned kFullWarp = 0xffffffffu;

struct AddOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct MaxOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

struct MinOp {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};

template <typename T, typename Combine>
__device__ inline T warp_reduce(T value, Combine combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

// Values of up to 32 warps in shared memory. All threads read all of them, so as many at once as can be.
template <typename T>
struct InTurn {
  static constexpr int kAtOnce = sizeof(T) < 16 ? 16 / sizeof(T) : 1;
  struct alignas(kAtOnce * sizeof(T)) Some {
    T of[kAtOnce];
  };
  Some values[(32 + kAtOnce - 1) / kAtOnce];

  __device__ T& at(int warp) { return values[warp / kAtOnce].of[warp % kAtOnce]; }
  // Of the first `count`, one after the other.
  template <typename Combine>
  __device__ T reduce(int count, Combine combine) const {
    T result = values[0].of[0];
    for (int begin = 0; begin < count; begin += kAtOnce) {
      const Some some = values[begin / kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i > 0 && begin + i < count) result = combine(result, some.of[i]);
      }
    }
    return result;
  }
};

// Every thread gets the result. The block has whole warps, 32 at most. Ends with a barrier, so that calls may
// follow one another.
template <typename T, typename Combine>
__device__ inline T block_reduce(T value, Combine combine) {
  __shared__ InTurn<T> partial;
  value = warp_reduce(value, combine);
  if (threadIdx.x % 32 == 0) partial.at(static_cast<int>(threadIdx.x) / 32) = value;
  __syncthreads();
  const T result = partial.reduce(static_cast<int>(blockDim.x) / 32, combine);
  __syncthreads();
  return result;
}

// The sum of the values of the lanes up to this one.
template <typename T>
__device__ inline T warp_inclusive_sum(T value) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    T other = __shfl_up_sync(kFullWarp, value, distance);
    if (lane >= distance) value += other;
  }
  return value;
}

// The sum of the values of the threads before this one.
template <typename T>
__device__ inline T block_exclusive_sum(T value) {
  __shared__ T totals[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const T inclusive = warp_inclusive_sum(value);
  if (lane == 31) totals[warp] = inclusive;
  __syncthreads();
  T before = 0;
  for (int i = 0; i < warp; ++i) before += totals[i];
  T exclusive = __shfl_up_sync(kFullWarp, inclusive, 1);
  if (lane == 0) exclusive = 0;
  __syncthreads();
  return before + exclusive;
}

}  // namespace llm_dist::kernels
