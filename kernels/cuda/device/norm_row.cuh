// The norm of a row by a block (kernels/rms_norm.h), wherever the row comes from: kernels that share it, with
// norm_threads() in a block, agree to the bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"

namespace llm_dist::kernels {

constexpr int kMostNormThreads = 1024;

// Of the block for a row of `width` elements, `vec` of them an access: whole warps.
constexpr int norm_threads(int64_t width, int vec) {
  const int64_t accesses = (width + vec - 1) / vec;
  const int64_t threads = (accesses + 31) / 32 * 32;
  return static_cast<int>(threads < kMostNormThreads ? threads : kMostNormThreads);
}

// residual ← before + values, rounded to T; `values` become what stands there.
template <int kVec, typename T>
__device__ inline void add_into(const float (&before)[kVec], float (&values)[kVec], T* residual) {
#pragma unroll
  for (int v = 0; v < kVec; ++v) values[v] = to_float_dev(from_float_dev<T>(values[v] + before[v]));
  store_vec<kVec>(values, residual);
}

template <int kVec>
__device__ inline void add_squares(const float (&values)[kVec], float& squares) {
#pragma unroll
  for (int v = 0; v < kVec; ++v) squares += values[v] * values[v];
}

// What a row is multiplied by whose squares sum up to `squares`.
__device__ inline float norm_scale(float squares, int width, float epsilon) {
  const float mean = squares / static_cast<float>(width);
  return rsqrtf(mean + epsilon);
}

template <int kVec>
__device__ inline void scale_into(const float (&from)[kVec],
                                  float scale,
                                  const float (&weights)[kVec],
                                  float (&to)[kVec]) {
#pragma unroll
  for (int v = 0; v < kVec; ++v) to[v] = from[v] * scale * weights[v];
}

// begin() is called once, before anything but the weights is read. take(i, values) gives the row's elements
// from i on, each once; `again` is where they can be read from afterwards, by the thread that took them.
// put(i, values) gets those of the norm.
template <int kVec, typename T, typename Begin, typename Take, typename Put>
__device__ inline void norm_row(int width,
                                const T* __restrict__ weight,
                                float epsilon,
                                Begin&& begin,
                                Take&& take,
                                const T* again,
                                Put&& put) {
  const int first = static_cast<int>(threadIdx.x) * kVec;
  const int step = static_cast<int>(blockDim.x) * kVec;
  // The weights do not wait for the row.
  float weights[kVec] = {};
  if (first < width) load_vec<kVec>(weight + first, weights);
  begin();
  float kept[kVec] = {};
  float squares = 0;
  for (int i = first; i < width; i += step) {
    float values[kVec];
    take(i, values);
    add_squares(values, squares);
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      if (i == first) kept[v] = values[v];
    }
  }
  const float scale = norm_scale(block_reduce(squares, AddOp()), width, epsilon);
  for (int i = first; i < width; i += step) {
    if (i != first) {
      load_vec<kVec>(again + i, kept);
      load_vec<kVec>(weight + i, weights);
    }
    float values[kVec];
    scale_into(kept, scale, weights, values);
    put(i, values);
  }
}

// To `out`.
template <int kVec, typename T, typename Begin, typename Take>
__device__ inline void norm_row(int width,
                                const T* __restrict__ weight,
                                float epsilon,
                                Begin&& begin,
                                Take&& take,
                                const T* again,
                                T* out) {
  auto put = [&](int i, const float(&values)[kVec]) { store_vec<kVec>(values, out + i); };
  norm_row<kVec>(width, weight, epsilon, begin, take, again, put);
}

}  // namespace llm_dist::kernels
