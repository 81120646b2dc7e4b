// The norm of a row by a block (kernels/rms_norm.h), or by a cluster of them, wherever the row comes from:
// kernels that share it, with norm_threads() or more in all for a row, agree to the bit. Each warp adds up
// its squares, and then they are added warp by warp.
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

// A row's threads: those of a block.
struct BlockOfRow {
  // Of a grid that takes row after row.
  __device__ int first_row() const { return static_cast<int>(blockIdx.x); }
  __device__ int rows_at_once() const { return static_cast<int>(gridDim.x); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  // Of all of them, to each.
  __device__ float sum(float value) const { return block_reduce(value, AddOp()); }
};

// begin() is called once, before anything but the weights is read. take(i, values) gives the row's elements
// from i on, each once, rounded to T; `again` is where they can be read from afterwards, by the thread that
// took them. put(i, values) gets those of the norm. kOneTurn: threads have kVec elements at most.
template <int kVec,
          bool kOneTurn = false,
          typename Threads,
          typename T,
          typename Begin,
          typename Take,
          typename Put>
__device__ inline void norm_row(Threads&& threads,
                                int width,
                                const T* __restrict__ weight,
                                float epsilon,
                                Begin&& begin,
                                Take&& take,
                                const T* again,
                                Put&& put) {
  const int first = threads.thread() * kVec;
  const int step = threads.threads() * kVec;
  auto each = [&](auto&& call) {
    if constexpr (kOneTurn) {
      if (first < width) call(first, true);
    } else {
      for (int i = first; i < width; i += step) call(i, i == first);
    }
  };
  // The weights do not wait for the row.
  Packed<T, kVec> weights{};
  if (first < width) weights.load(weight + first);
  begin();
  Packed<T, kVec> kept{};
  float squares = 0;
  each([&](int i, bool is_kept) {
    float values[kVec];
    take(i, values);
    add_squares(values, squares);
    if (is_kept) kept.pack(values);
  });
  const float scale = norm_scale(threads.sum(squares), width, epsilon);
  each([&](int i, bool is_kept) {
    if (!is_kept) {
      kept.load(again + i);
      weights.load(weight + i);
    }
    float values[kVec];
    float factors[kVec];
    kept.unpack(values);
    weights.unpack(factors);
    scale_into(values, scale, factors, values);
    put(i, values);
  });
}

// To `out`.
template <int kVec, bool kOneTurn = false, typename Threads, typename T, typename Begin, typename Take>
__device__ inline void norm_row(Threads&& threads,
                                int width,
                                const T* __restrict__ weight,
                                float epsilon,
                                Begin&& begin,
                                Take&& take,
                                const T* again,
                                T* out) {
  auto put = [&](int i, const float(&values)[kVec]) { store_vec<kVec>(values, out + i); };
  norm_row<kVec, kOneTurn>(threads, width, weight, epsilon, begin, take, again, put);
}

}  // namespace llm_dist::kernels
