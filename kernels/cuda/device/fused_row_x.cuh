// The row that a kernel for a single row (fused_row.cu) multiplies, in the shared memory of each block: as it
// is, lifted for f16, or normed first.
#pragma once

#include "kernels/cuda/device/fused_row_args.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/second_level.cuh"
#include "kernels/cuda/device/terms_of_row.cuh"

namespace llm_dist::kernels::fused_row {

inline constexpr int kKept = 4;  // vectors of x that a thread keeps, what is longer is read again
inline constexpr int kKeptOfNorm = 2;

// Where in shared memory the v-th eight elements of x stand: a thread takes kVecs of them for a step, and
// neighbours' lie side by side.
template <int kVecs>
__device__ inline int place_of(int v) {
  constexpr int kOfStep = kWarpSize * kVecs;
  return v / kOfStep * kOfStep + v % kVecs * kWarpSize + v % kOfStep / kVecs;
}

// 2^(14 - e) for a largest magnitude of 2^e to 2^(e + 1), given its bits.
__device__ inline float lift_of(uint32_t largest) {
  constexpr uint32_t kTop = 2 * 127 + 14;
  return __uint_as_float(min(kTop - (largest >> 23), 254u) << 23);
}

struct LargestAndSquares {
  uint32_t largest;
  float squares;
};
// Of the whole block.
__device__ inline LargestAndSquares reduce_both(uint32_t largest, float squares) {
  __shared__ LargestAndSquares partial[kWarps];
  largest = __reduce_max_sync(kFullWarp, largest);
  squares = warp_reduce(squares, AddOp());
  if (threadIdx.x % kWarpSize == 0) partial[threadIdx.x / kWarpSize] = {largest, squares};
  __syncthreads();
  LargestAndSquares all = partial[0];
#pragma unroll
  for (int i = 1; i < kWarps; ++i)
    all = {max(all.largest, partial[i].largest), all.squares + partial[i].squares};
  return all;
}

// x to shared memory; gives what sums are to be multiplied by. meanwhile() is called when x is on its way.
template <typename T, typename W, typename Meanwhile>
__device__ inline float stage_x(const FusedRowArgs& args, uint4* to, Meanwhile&& meanwhile) {
  using F = Factors<T, W>;
  const auto* from = static_cast<const uint4*>(args.x);
  const int vecs = args.k / kVecWidth;
  const int places = args.groups * kGroupElements<W> / kVecWidth;
  const int first = static_cast<int>(threadIdx.x);
  auto load = [&](int v) { return v < vecs ? load_from_second_level(from + v) : uint4{}; };
  uint4 kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (i * kThreads < places) kept[i] = load(first + i * kThreads);
  }
  meanwhile();
  float lift = 1;
  if constexpr (F::kLifts) {
    uint32_t largest = 0;  // of the elements in upper and in lower halves
    auto look = [&](uint4 raw) {
      for (uint32_t word : {raw.x, raw.y, raw.z, raw.w}) largest = __vmaxu2(largest, word & 0x7fff7fffu);
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (i * kThreads < places) look(kept[i]);
    }
    for (int v = first + kKept * kThreads; v < vecs; v += kThreads) look(load(v));
    lift = lift_of(reduce_both(max(largest & 0xffff0000u, largest << 16), 0).largest);
  }
  auto put = [&](int v, uint4 raw) {
    if constexpr (F::kLifts) {
      float values[kVecWidth];
      unpack_eight<T>(raw, values);
      raw = pack_eight<__half>(values, lift);
    }
    if (v < places) to[place_of<F::kVecs>(v)] = raw;
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (i * kThreads < places) put(first + i * kThreads, kept[i]);
  }
  for (int v = first + kKept * kThreads; v < places; v += kThreads) put(v, load(v));
  __syncthreads();
  return 1 / lift;
}

// The norm of x and the residual stream, likewise; their sum, as it is to be stored, to `sums`. `number`: of
// the sum over ranks that x is.
template <typename T, typename W, typename Meanwhile>
__device__ inline float stage_norm(const FusedRowArgs& args,
                                   const uint4 (&weights)[kKeptOfNorm],
                                   uint64_t number,
                                   uint4* sums,
                                   uint4* to,
                                   Meanwhile&& meanwhile) {
  using F = Factors<T, W>;
  const auto* x = static_cast<const uint4*>(args.norm.x);
  const auto* residual = static_cast<const uint4*>(args.norm.residual);
  const int vecs = static_cast<int>(args.norm.width) / kVecWidth;
  const int places = args.groups * kGroupElements<W> / kVecWidth;
  const int first = static_cast<int>(threadIdx.x);
  uint4 kept[kKeptOfNorm];
  uint4 before[kKeptOfNorm];
#pragma unroll
  for (int i = 0; i < kKeptOfNorm; ++i) {
    const int v = first + i * kThreads;
    kept[i] = before[i] = {};
    if (v >= vecs) continue;
    if (!has_terms(args)) kept[i] = load_from_second_level(x + v);
    before[i] = load_from_second_level(residual + v);
  }
  if (has_terms(args)) {
    sum_terms<T>(args.norm.terms, number, first, kThreads, vecs, kept, meanwhile);
  } else {
    meanwhile();
  }
  // The norm's scale is one factor of all elements: which of them is the largest is known without it.
  auto weighted = [&](int i, float scale, float(&values)[kVecWidth]) {
    float weight[kVecWidth];
    unpack_eight<T>(kept[i], values);
    unpack_eight<T>(weights[i], weight);
    scale_into(values, scale, weight, values);
  };
  uint32_t largest = 0;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKeptOfNorm; ++i) {
    if (i * kThreads >= vecs) continue;
    float values[kVecWidth];
    float other[kVecWidth];
    unpack_eight<T>(kept[i], values);
    unpack_eight<T>(before[i], other);
    add_into<kVecWidth>(other, values, reinterpret_cast<T*>(&kept[i]));
    add_squares<kVecWidth>(values, squares);
    if constexpr (F::kLifts) {
      weighted(i, 1, values);
#pragma unroll
      for (float value : values) largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
    }
    if (first + i * kThreads < vecs) sums[first + i * kThreads] = kept[i];
  }
  const LargestAndSquares seen = reduce_both(largest, squares);
  const float scale = norm_scale(seen.squares, static_cast<int>(args.norm.width), args.norm.epsilon);
  const float lift = F::kLifts ? lift_of(__float_as_uint(__uint_as_float(seen.largest) * scale)) : 1.0f;
#pragma unroll
  for (int i = 0; i < kKeptOfNorm; ++i) {
    if (i * kThreads >= places) continue;
    float values[kVecWidth];
    weighted(i, scale, values);
    // Rounded as a norm by itself would be.
    uint4 packed = pack_eight<T>(values, 1);
    if constexpr (F::kLifts) {
      unpack_eight<T>(packed, values);
      packed = pack_eight<__half>(values, lift);
    }
    if (first + i * kThreads < places) to[place_of<F::kVecs>(first + i * kThreads)] = packed;
  }
  __syncthreads();
  return 1 / lift;
}

// This thread's part of what the norm leaves behind, once all blocks have read what was there before.
template <typename T, typename W>
__device__ inline void write_norm(const FusedRowArgs& args, const uint4* sums, const uint4* x, float factor) {
  using F = Factors<T, W>;
  const int vecs = static_cast<int>(args.norm.width) / kVecWidth;
#pragma unroll 2
  for (int v = static_cast<int>(threadIdx.x); v < vecs; v += kThreads) {
    static_cast<uint4*>(args.norm.residual)[v] = sums[v];
    uint4 packed = x[place_of<F::kVecs>(v)];
    if constexpr (F::kLifts) {
      float values[kVecWidth];
      unpack_eight<__half>(packed, values);
      packed = pack_eight<T>(values, factor);
    }
    static_cast<uint4*>(args.norm.out)[v] = packed;
  }
}

}  // namespace llm_dist::kernels::fused_row
