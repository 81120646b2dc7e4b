// What the kernels share that multiply few rows of x at the speed at which W is read (streamed_linear.cu,
// even_linear.cu): strips of rows of W, stages that hold some columns of one and of x (streamed_stages.cuh),
// and a warp that asks TMA for them, as many ahead as there is memory. Of W it asks before the kernel in
// front has ended: memory has work to do while kernels change. The launch: streamed_launch.cuh.
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
#include "kernels/cuda/device/streamed_stages.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace llm_dist::kernels::streamed {

struct StreamArgs {
  int rows = 0;     // of x
  int columns = 0;  // of y
  int steps = 0;    // stages that hold all columns of W
  int64_t y_stride = 0;
  const float* x_scales = nullptr;  // where x comes in 8 bits: of as many rows as there is room for
  bool floats = false;              // y
  bool gated = false;
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
