// What the kernels share that multiply few rows of x at the speed at which W is read (streamed_linear.cu,
// even_linear.cu): strips of rows of W, stages in shared memory that hold some columns of one and of x, and a
// warp that asks TMA for them, as many ahead as there is memory. Of W it asks before the kernel in front has
// ended: memory has work to do while kernels change. The launch: streamed_launch.cuh.
//
// A strip has 64 rows, or 128 for two warpgroups: x comes from L2 again for every strip, for wide ones half
// as often.
//
// A strip of a gated product has eight rows of the gate and the eight of what it lets through in turns, so
// that a thread gets the sums of both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/overlap.cuh"
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

struct StreamArgs {
  int rows = 0;     // of x
  int columns = 0;  // of y
  int steps = 0;    // stages that hold all columns of W
  int64_t y_stride = 0;
  const float* x_scales = nullptr;  // of its rows, where they come in parts
  bool floats = false;              // y
  bool gated = false;
};

// Of more tokens y is stored by way of shared memory.
constexpr int kMostRowsStoredAsTheyLie = 32;

// Sums of a strip travel between blocks in groups, of eight tokens each: a vector for every thread of a warp.
constexpr int kGroupBytes = kWarpSize * static_cast<int>(sizeof(float4));
// Where `parts` blocks add up so many groups, dealt out to them one after the other: the most that one gets.
constexpr int turns_of(int groups, int parts) { return (groups + parts - 1) / parts; }
// What the others send one of them, at most.
constexpr int most_sent(int groups) {
  int most = 0;
  for (int parts = 2; parts <= StreamedDivision::kMostParts; ++parts) {
    const int sent = (parts - 1) * turns_of(groups, parts) * kGroupBytes;
    most = sent > most ? sent : most;
  }
  return most;
}

// kParts: of x, each as many rows as x has, where W is in f8_e4m3; 0: both have the same elements of 16 bits.
// kTokens: rows of x. kWarpgroups: that multiply, each its rows of a strip. kSharing: blocks of a cluster
// that are at the same columns of strips side by side: each brings its share of x to all of them. kDivided:
// whether other blocks of the cluster may have other columns of the strip, and send sums. A cluster's blocks
// are numbered so that those that share x follow each other.
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
  // adds.
  static constexpr int kBlocks = kF8 && kWarpgroups == 1 ? 2 : 1;
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
  // that where y of many tokens is turned (tiled_output.cuh). What narrow strips need of it is so little that
  // it finds room beside kStageBytes.
  static constexpr bool kTiled = kTokens > kMostRowsStoredAsTheyLie;
  static constexpr int kTileBytes = 1024;  // of a warp
  static constexpr int kSentBytes = kDivided ? most_sent(kWarps * kTokens / 8) : 0;
  static constexpr int kCount =
      (kStageBytes / kBlocks - kTileAlignment - (kWarpgroups > 1 ? kSentBytes : 0)) / kBytes;
  static constexpr int kSharedBytes =
      kTileAlignment + kCount * kBytes + kSentBytes + (kTiled ? kWarps * kTileBytes : 0);
  // With barriers, and what a processor takes for itself of each block.
  static_assert(kBlocks * (kSharedBytes + 2048) <= 228 << 10);
  static_assert(kCount >= 2);
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

// A stage's columns of a strip.
struct Place {
  int strip;
  int step;
  __device__ void advance(int steps) {
    if (++step < steps) return;
    step = 0;
    ++strip;
  }
};

// `count` stages from `first` on, over the ends of strips. One thread calls it; blocks that share x have
// arrived at their cluster, and it waits for that.
template <typename S>
__device__ inline void bring_tiles(const CUtensorMap& w,
                                   const CUtensorMap& x,
                                   const StreamArgs& args,
                                   Place first,
                                   int count,
                                   const S& stages) {
  const uint64_t once = policy_read_once();
  const uint64_t often = policy_read_often();
  auto load_weights = [&](const Place& place, int stage) {
    barrier_arrive_expecting(stages.full + stage, S::kBytes);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const int column = (place.step * S::kBoxes + box) * S::kBoxColumns;
      std::byte* to = stages.weights(stage, box);
      if (args.gated) {
        load_box_4d(to, w, column, 0, 0, S::strip_of(place.strip) * S::kGroups, stages.full + stage, once);
      } else {
        load_box(to, w, column, S::strip_of(place.strip) * S::kStripRows, stages.full + stage, once);
      }
    }
  };
  auto load_x = [&](const Place& place, int stage) {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const int column = (place.step * S::kBoxes + box) * S::kBoxColumns;
      if constexpr (S::kSharing == 1) {
        load_box(stages.x(stage, box), x, column, 0, stages.full + stage, often);
      } else {
        const auto all = static_cast<uint16_t>(((1 << S::kSharing) - 1) << S::first_sharing());
        const int row = S::share() * S::kXRowsBrought;
        load_box_in_blocks(
            stages.x(stage, box) + row * kRowBytes, x, column, row, stages.full + stage, all, often);
      }
    }
  };
  const int ahead = count < S::kCount ? count : S::kCount;
  Place place = first;
  for (int i = 0; i < ahead; ++i) {
    load_weights(place, i);
    place.advance(args.steps);
  }
  wait_for_previous();
  if constexpr (S::kSharing > 1) await_cluster_alone();
  place = first;
  for (int i = 0; i < ahead; ++i) {
    load_x(place, i);
    place.advance(args.steps);
  }
  Cursor<S::kCount> cursor;
  for (int i = ahead; i < count; ++i) {
    barrier_wait(stages.empty + cursor.stage, cursor.parity);
    load_weights(place, cursor.stage);
    load_x(place, cursor.stage);
    place.advance(args.steps);
    cursor.advance();
  }
}

// The threads of a block that multiply meet.
template <typename S>
__device__ inline void barrier_of_multipliers() {
  asm volatile("bar.sync 1, %0;" ::"n"(S::kMultipliers) : "memory");
}

// At the end of blocks that share x, by whole warps behind the last stage that they read: what one has asked
// for may still be on its way to another.
__device__ inline void await_readers() {
  arrive_at_cluster();
  await_cluster();
}

// A thread's sums of the i-th eight tokens.
template <int kSums>
__device__ inline float4 sums_of_group(const float (&sums)[kSums], int i) {
  return make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
}

// The number of this thread's warp: the same in all lanes, and the compiler is to know it, as products are
// issued by whole warps.
__device__ inline int warp_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpSize, 0);
}

}  // namespace llm_dist::kernels::streamed
