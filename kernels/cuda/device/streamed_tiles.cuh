// What the kernels share that multiply few rows of x at the speed at which W is read (streamed_linear.cu,
// even_linear.cu): strips of rows of W, stages in shared memory that hold some columns of one and of x, a
// warp that asks TMA for them, as many ahead as there is memory, and the launch. Of W it asks before the
// kernel in front has ended: memory has work to do while kernels change.
//
// A strip has 64 rows, or 128 for two warpgroups: x comes from L2 again for every strip, for wide ones half
// as often.
//
// A strip of a gated product has eight rows of the gate and the eight of what it lets through in turns, so
// that a thread gets the sums of both.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/stream_memory.h"
#include "kernels/cuda/tensor_map.h"

namespace llm_dist::kernels::streamed {

constexpr int kProductRows = 64;             // of W: what one product takes
constexpr int kRowBytes = 128;               // TMA's widest swizzle
constexpr int kMostSharedBytes = 220 << 10;  // of a processor
constexpr int kTileAlignment = 1024;         // of TMA's swizzle
constexpr int kGroupRows = 8;                // of W, side by side in a gated strip

struct StreamArgs {
  int rows = 0;     // of x
  int columns = 0;  // of y
  int steps = 0;    // stages that hold all columns of W
  int64_t y_stride = 0;
  const float* x_scales = nullptr;  // of its rows, where they come in parts
  bool floats = false;              // y
  bool gated = false;
};

// Into how many 8-bit floats an element of x is split (quantize_rows.h), where W is in them.
template <typename T>
constexpr int kPartsOf = std::is_same_v<T, __half> ? 3 : 2;

// kParts: of x, each as many rows as x has, where W is in f8_e4m3; 0: both have the same elements of 16 bits.
// kTokens: rows of x. kWarpgroups: that multiply, each its rows of a strip.
template <int kParts_, int kTokens_, int kWarpgroups_ = 1>
struct Stages {
  static constexpr int kParts = kParts_;
  static constexpr bool kF8 = kParts > 0;
  static constexpr int kTokens = kTokens_;
  static constexpr int kWarpgroups = kWarpgroups_;
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
  static constexpr int kWeightBytes = kStripRows * kRowBytes;  // of a box
  static constexpr int kXBytes = kXRows * kRowBytes;
  static constexpr int kBytes = kBoxes * (kWeightBytes + kXBytes);
  static constexpr int kCount = (kMostSharedBytes / kBlocks - kTileAlignment) / kBytes;
  static constexpr int kSharedBytes = kCount * kBytes + kTileAlignment;
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
        barrier_init(made.empty + i, kReaders);
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

// `count` stages from `first` on, over the ends of strips.
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
        load_box_4d(to, w, column, 0, 0, place.strip * S::kGroups, stages.full + stage, once);
      } else {
        load_box(to, w, column, place.strip * S::kStripRows, stages.full + stage, once);
      }
    }
  };
  auto load_x = [&](const Place& place, int stage) {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      const int column = (place.step * S::kBoxes + box) * S::kBoxColumns;
      load_box(stages.x(stage, box), x, column, 0, stages.full + stage, often);
    }
  };
  const int ahead = count < S::kCount ? count : S::kCount;
  Place place = first;
  for (int i = 0; i < ahead; ++i) {
    load_weights(place, i);
    place.advance(args.steps);
  }
  wait_for_previous();
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

// The number of this thread's warp: the same in all lanes, and the compiler is to know it, as products are
// issued by whole warps.
__device__ inline int warp_number() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpSize, 0);
}

// with_stages(shape, run): calls run(T(), Stages()) with what the shape takes; with_wide_stages(shape, run):
// with wide strips.
template <int kParts, typename T, typename Run>
cudaError_t with_stages_of(T type, int64_t rows, Run&& run) {
  if (rows <= 8) return run(type, Stages<kParts, 8>());
  if (rows <= 16) return run(type, Stages<kParts, 16>());
  if constexpr (kParts > 0) {
    return run(type, Stages<kParts, 32>());
  } else {
    return rows <= 32 ? run(type, Stages<kParts, 32>()) : run(type, Stages<kParts, 64>());
  }
}
template <int kParts, typename T, typename Run>
cudaError_t with_wide_stages_of(T type, int64_t rows, Run&& run) {
  if (rows <= 16) return run(type, Stages<kParts, 16, 2>());
  if constexpr (kParts > 0) {
    return run(type, Stages<kParts, 32, 2>());
  } else {
    return rows <= 32 ? run(type, Stages<kParts, 32, 2>()) : run(type, Stages<kParts, 64, 2>());
  }
}
template <typename Run>
cudaError_t with_type(const MatmulShape& shape, Run&& run) {
  return shape.in == DType::kBF16 ? run(__nv_bfloat16()) : run(__half());
}
template <typename Run>
cudaError_t with_stages(const MatmulShape& shape, Run&& run) {
  return with_type(shape, [&](auto type) {
    return shape.f8_weight ? with_stages_of<kPartsOf<decltype(type)>>(type, shape.m, run)
                           : with_stages_of<0>(type, shape.m, run);
  });
}
template <typename Run>
cudaError_t with_wide_stages(const MatmulShape& shape, Run&& run) {
  return with_type(shape, [&](auto type) {
    return shape.f8_weight ? with_wide_stages_of<kPartsOf<decltype(type)>>(type, shape.m, run)
                           : with_wide_stages_of<0>(type, shape.m, run);
  });
}

template <typename S>
int64_t strips_of(const MatmulShape& shape) {
  return ceil_div(shape.n, S::kStripRows);
}
template <typename S>
int64_t steps_of(const MatmulShape& shape) {
  return ceil_div(shape.k, S::kColumns);
}

// Rows of `stride` elements, read in boxes of kRowBytes and `box_rows` rows.
inline TensorMapShape rows_of(
    DType dtype, const void* data, int64_t columns, int64_t rows, int64_t stride, int box_rows) {
  return {.dtype = dtype,
          .data = data,
          .dimensions = 2,
          .sizes = {columns, rows},
          .strides = {stride},
          .box = {static_cast<int>(kRowBytes / dtype_bytes(dtype)), box_rows}};
}

// W of a gated product as [groups of eight rows, gate or not, row of the group, column], read in boxes of
// `box_groups` of the gate and the same of what they let through.
inline TensorMapShape gated_rows_of(DType dtype, const void* data, const MatmulShape& shape, int box_groups) {
  const int64_t half = shape.n / 2;
  return {.dtype = dtype,
          .data = data,
          .dimensions = 4,
          .sizes = {shape.k, kGroupRows, 2, half / kGroupRows},
          .strides = {shape.k, half * shape.k, kGroupRows * shape.k},
          .box = {static_cast<int>(kRowBytes / dtype_bytes(dtype)), kGroupRows, 2, box_groups}};
}

struct StreamCall {
  const TensorMapEncoder& encoder;
  const MatmulShape& shape;
  const MatmulOperands& operands;
  const StreamMemory& memory;
  cudaStream_t stream;
};

// `cluster_blocks`: 0 without clusters. `rest`: the kernel's arguments behind those that all have.
template <typename T, typename S, typename... Rest>
cudaError_t launch_streamed(
    void (*kernel)(CUtensorMap, CUtensorMap, StreamArgs, const float*, const T*, void*, Rest...),
    S,
    const StreamCall& call,
    int64_t blocks,
    int cluster_blocks,
    Rest... rest) {
  const MatmulShape& shape = call.shape;
  const MatmulOperands& operands = call.operands;
  const StreamArgs args{.rows = static_cast<int>(shape.m),
                        .columns = static_cast<int>(shape.columns()),
                        .steps = static_cast<int>(steps_of<S>(shape)),
                        .y_stride = shape.y_stride,
                        .x_scales = S::kF8 ? call.memory.code_scales : nullptr,
                        .floats = shape.out == DType::kF32,
                        .gated = shape.gated};
  const DType weight = shape.f8_weight ? DType::kF8E4M3 : shape.in;
  CUtensorMap w;
  CUtensorMap x;
  cudaError_t error =
      call.encoder.encode(shape.gated ? gated_rows_of(weight, operands.w, shape, S::kGroups)
                                      : rows_of(weight, operands.w, shape.k, shape.n, shape.k, S::kStripRows),
                          w);
  if (error == cudaSuccess) {
    const uint8_t* codes = call.memory.codes;
    error = call.encoder.encode(
        S::kF8 ? rows_of(weight, codes, shape.k, S::kXRows, shape.k, S::kXRows)
               : rows_of(shape.in, operands.x, shape.k, shape.m, shape.x_stride, S::kTokens),
        x);
  }
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::kSharedBytes);
  if (S::kF8 && error == cudaSuccess)
    error = launch_quantize_rows({.in = shape.in,
                                  .x = operands.x,
                                  .x_stride = shape.x_stride,
                                  .rows = shape.m,
                                  .k = shape.k,
                                  .parts = S::kParts,
                                  .part_rows = S::kTokens,
                                  .codes = call.memory.codes,
                                  .scales = call.memory.code_scales},
                                 call.stream);
  if (error != cudaSuccess) return error;
  const OverlappedLaunch launch{
      .grid = dim3(static_cast<unsigned>(blocks)),
      .threads = S::kThreads,
      .stream = call.stream,
      .shared_bytes = S::kSharedBytes,
      .cluster_blocks = cluster_blocks,
  };
  return launch_overlapped(kernel,
                           launch,
                           w,
                           x,
                           args,
                           operands.w_scales,
                           static_cast<const T*>(operands.bias),
                           operands.y,
                           rest...);
}

}  // namespace llm_dist::kernels::streamed
