// Results of online softmaxes over shares of a context, merged by a block (Dao et al. 2023,
// "Flash-Decoding").
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {

// Eight dimensions of a row's result, and its maximum and sum.
struct Piece {
  float values[8] = {};
  float2 end = {-INFINITY, 0};
};
constexpr int kPieceFloats = 12;  // in shared memory: whole 16 bytes

// A piece's eight dimensions from and to memory at a multiple of 16 bytes.
__device__ inline void load_values(const float* from, Piece& to) {
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const float4 four = reinterpret_cast<const float4*>(from)[v];
    to.values[4 * v] = four.x;
    to.values[4 * v + 1] = four.y;
    to.values[4 * v + 2] = four.z;
    to.values[4 * v + 3] = four.w;
  }
}
__device__ inline void store_values(const float (&values)[8], float* to) {
#pragma unroll
  for (int v = 0; v < 2; ++v)
    reinterpret_cast<float4*>(to)[v] =
        make_float4(values[4 * v], values[4 * v + 1], values[4 * v + 2], values[4 * v + 3]);
}

// How many blocks have come before this one. One thread calls it, behind a barrier of the block: its release
// covers what the block's other threads wrote before that barrier, so that they need no fences, and its
// acquire what the earlier blocks wrote.
__device__ inline int count_arrival(int32_t* arrivals) {
  int before;
  asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(arrivals) : "memory");
  return before;
}

// Merges `count` results of a piece by `threads` neighbouring lanes, each of which loads every `threads`-th,
// so that few loads wait for each other; all those lanes get the merged one. All lanes of a warp call it.
// kBatch: loads on their way at once.
template <int kBatch, typename Load>
__device__ inline Piece merge_pieces(int count, int threads, Load&& load) {
  Piece merged;
  auto add = [&](const Piece& other, float base) {
    const float weight = exp2f(other.end.x - base);
    merged.end.y += weight * other.end.y;
#pragma unroll
    for (int v = 0; v < 8; ++v) merged.values[v] += weight * other.values[v];
  };
  // To another maximum. Nothing seen so far: the exponents would be of infinity minus infinity.
  auto rescale = [&](float max) {
    const float base = max == -INFINITY ? 0.0f : max;
    const float weight = exp2f(merged.end.x - base);
    merged.end = make_float2(max, merged.end.y * weight);
#pragma unroll
    for (float& value : merged.values) value *= weight;
    return base;
  };
  for (int begin = static_cast<int>(threadIdx.x) % threads; begin < count; begin += kBatch * threads) {
    Piece loaded[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (begin + b * threads < count) load(begin + b * threads, loaded[b]);
    }
    float max = merged.end.x;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) max = fmaxf(max, loaded[b].end.x);
    const float base = rescale(max);
#pragma unroll
    for (int b = 0; b < kBatch; ++b) add(loaded[b], base);
  }
  for (int distance = 1; distance < threads; distance *= 2) {
    auto from_other = [distance](float mine) { return __shfl_xor_sync(0xffffffffu, mine, distance); };
    Piece other;
    other.end = make_float2(from_other(merged.end.x), from_other(merged.end.y));
#pragma unroll
    for (int v = 0; v < 8; ++v) other.values[v] = from_other(merged.values[v]);
    add(other, rescale(fmaxf(merged.end.x, other.end.x)));
  }
  return merged;
}

// Calls take(piece, merged) for each of `pieces`, on one thread, with the results of `count` sources that
// load(piece, source, result) gives. All kThreads threads of the block call it.
template <int kThreads, int kBatch, typename Load, typename Take>
__device__ inline void merge_block(int pieces, int count, Load&& load, Take&& take) {
  int threads = 1;  // of a piece
  while (2 * threads * pieces <= kThreads && 2 * threads <= kWarpSize) threads *= 2;
  for (int first = 0; first < pieces; first += kThreads / threads) {
    const int piece = first + static_cast<int>(threadIdx.x) / threads;
    const Piece merged = merge_pieces<kBatch>(
        count, threads, [&](int source, Piece& loaded) { load(min(piece, pieces - 1), source, loaded); });
    if (piece < pieces && threadIdx.x % threads == 0) take(piece, merged);
  }
}

}  // namespace llm_dist::kernels
