// Shared memory of the kernels that multiply few rows of x (streamed_tiles.cuh): a ring of stages, each of
// which holds some columns of a strip of W and of x, barriers that say when one is full and when it is empty,
// and what stands behind them for a strip's end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/streamed_division.h"

namespace llm_dist::kernels::streamed {

constexpr int kProductRows = 64;        // of W: what one product takes
constexpr int kRowBytes = 128;          // TMA's widest swizzle
constexpr int kStageBytes = 220 << 10;  // of a processor's shared memory, at most
constexpr int kTileAlignment = 1024;    // of TMA's swizzle
constexpr int kGroupRows = 8;           // of W, side by side in a gated strip

// Of more tokens y is stored by way of shared memory.
constexpr int kMostRowsStoredAsTheyLie = 32;
// Up to so many rows strips are narrow or wide; of more, narrow ones only in parts (streamed_linear.cu),
// since x is up to twice the bytes of W then.
constexpr int kMostRowsOfNarrow = 64;
// Into which they are cut. Room for the sums of more would cost a stage.
constexpr int kMostNarrowPartsOfMany = 4;

// Sums of a strip travel between blocks in groups, of eight tokens each: a vector for every thread of a warp.
constexpr int kGroupBytes = kWarpSize * static_cast<int>(sizeof(float4));
// Where up to so many blocks add up so many groups, dealt out to them one after the other: what the others
// send one of them, at most.
constexpr int most_sent(int groups, int most_parts) {
  int64_t most = 0;
  for (int parts = 2; parts <= most_parts; ++parts)
    most = std::max(most, (parts - 1) * ceil_div(groups, parts) * kGroupBytes);
  return static_cast<int>(most);
}

// kParts: of x, each as many rows as x has, where W is in f8_e4m3, or one, which is rounded; 0: both have the
// same elements of 16 bits.
// kTokens: rows of x. kWarpgroups: that multiply, each its rows of a strip. kSharing: blocks of a cluster
// that are at the same columns of strips side by side: each brings its share of x to all of them. kDivided:
// whether other blocks of the cluster may have other columns of the strip, and send sums: wide strips have
// stages of their own for that, narrow ones of few tokens the same in both kernels, of which one sends
// nothing, and of many only in parts. A cluster's blocks are numbered so that those that share x follow each
// other.
template <int kParts_,
          int kTokens_,
          int kWarpgroups_ = 1,
          int kSharing_ = 1,
          bool kDivided_ = kWarpgroups_ == 1>
struct Stages {
  static constexpr int kParts = kParts_;
  static constexpr bool kF8 = kParts > 0;
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;
  static constexpr int kSharing = kSharing_;
  static constexpr bool kDivided = kDivided_;
  static constexpr int kStripRows = kWarpgroups * kProductRows;
  static constexpr int kGroups = kStripRows / (2 * kGroupRows);
  static constexpr int kMultipliers = kWarpgroups * kGroupThreads;
  static constexpr int kWarps = kMultipliers / kWarpSize;
  static constexpr int kBringer = kWarps;  // the warp behind those asks for tiles
  static constexpr int kThreads = kMultipliers + kWarpSize;
  // Of a processor. Two where a warpgroup waits for its products, so that one multiplies while the other
  // adds; not of more rows, whose stages are larger.
  static constexpr int kBlocks = kParts > 1 && kWarpgroups == 1 ? 2 : 1;
  // Of W and of x, side by side in a stage. One where a strip is wide: what was multiplied waits for the next
  // stage before it is asked for again, so that large ones leave much of the memory idle.
  static constexpr int kBoxes = 2 / kWarpgroups;
  static constexpr int kBoxColumns = kF8 ? kRowBytes : kRowBytes / 2;
  static constexpr int kColumns = kBoxes * kBoxColumns;
  static constexpr int kReaders = kF8 ? kWarps : kWarpgroups;  // who say that a stage is empty
  static constexpr int kXRows = kF8 ? kParts * kTokens : kTokens;
  static constexpr int kXRowsBrought = kXRows / kSharing;      // by one block
  static constexpr int kWeightBytes = kStripRows * kRowBytes;  // of a box
  static constexpr int kXBytes = kXRows * kRowBytes;
  static constexpr int kBytes = kBoxes * (kWeightBytes + kXBytes);
  // Behind the stages, where the blocks of a cluster send each other sums (streamed_linear.cu), and behind
  // that where y of many tokens is turned (tiled_output.cuh). What narrow strips of few rows need of it is so
  // little that it finds room beside kStageBytes.
  static constexpr bool kMany = kTokens > kMostRowsOfNarrow;
  static constexpr bool kTiled = kTokens > kMostRowsStoredAsTheyLie;
  static constexpr int kTileBytes = 1024;  // of a warp
  static constexpr int kMostParts =
      kMany && kWarpgroups == 1 ? kMostNarrowPartsOfMany : StreamedDivision::kMostParts / kSharing;
  static constexpr int kSentBytes = kDivided ? most_sent(kWarps * kTokens / 8, kMostParts) : 0;
  static constexpr int kCount =
      (kStageBytes / kBlocks - kTileAlignment - (kMany || kWarpgroups > 1 ? kSentBytes : 0)) / kBytes;
  static constexpr int kSharedBytes =
      kTileAlignment + kCount * kBytes + kSentBytes + (kTiled ? kWarps * kTileBytes : 0);
  // With barriers, and what a processor takes for itself of each block.
  static_assert(kBlocks * (kSharedBytes + 2048) <= 228 << 10);
  static_assert(kCount >= 2);
  // Where one block's rows of x begin, the swizzle does.
  static_assert(kXRows % kSharing == 0 && kXRowsBrought * kRowBytes % kTileAlignment == 0);
  std::byte* memory;
  uint64_t* full;
  uint64_t* empty;

  // All threads call it, once.
  __device__ static Stages make(std::byte* raw, uint64_t (&barriers)[2 * kCount]) {
    const Stages made{raw + (kTileAlignment - shared_address(raw) % kTileAlignment) % kTileAlignment,
                      barriers,
                      barriers + kCount};
    if (threadIdx.x == 0) {
      for (int i = 0; i < kCount; ++i) {
        barrier_init(made.full + i, 1);
        barrier_init(made.empty + i, kReaders * kSharing);
      }
      barrier_init_done();
    }
    __syncthreads();
    return made;
  }
  __device__ std::byte* weights(int stage, int box) const {
    return memory + stage * kBytes + box * kWeightBytes;
  }
  __device__ std::byte* x(int stage, int box) const {
    return memory + stage * kBytes + kBoxes * kWeightBytes + box * kXBytes;
  }
  // One reader of a block says that a stage is empty, to all who bring something to it.
  __device__ void release(int stage) const {
    if constexpr (kSharing == 1) {
      barrier_arrive(empty + stage);
    } else {
#pragma unroll
      for (int block = 0; block < kSharing; ++block)
        barrier_arrive_in_block(empty + stage, first_sharing() + block);
    }
  }
  // Of the blocks that share x with this one: which one it is, and the number of the first in the cluster.
  __device__ static int share() { return static_cast<int>(block_of_cluster()) % kSharing; }
  __device__ static int first_sharing() { return static_cast<int>(block_of_cluster()) - share(); }
  // A block's strip, of those side by side.
  __device__ static int strip_of(int strips) {
    if constexpr (kSharing == 1) return strips;
    return strips * kSharing + share();
  }
  __device__ float4* sent() const { return reinterpret_cast<float4*>(memory + kCount * kBytes); }
  __device__ std::byte* tile() const { return memory + kCount * kBytes + kSentBytes; }
};

}  // namespace llm_dist::kernels::streamed
