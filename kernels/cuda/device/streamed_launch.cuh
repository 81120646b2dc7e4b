// How the kernels are launched that multiply few rows of x at the speed at which W is read
// (streamed_tiles.cuh): which stages a shape takes, what TMA is told of W and x, and x in 8 bits where W is
// in them.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/overlapped_launch.h"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/quantize_rows.h"
#include "kernels/cuda/stream_memory.h"
#include "kernels/cuda/tensor_map.h"

namespace llm_dist::kernels::streamed {

// Into how many 8-bit floats an element of few rows is split (quantize_rows.h), where W is in them.
template <typename T>
constexpr int kPartsOf = std::is_same_v<T, __half> ? 3 : 2;

// with_parts(shape, run): calls run(T(), the number of parts of x) with what the shape takes.
template <typename Run>
cudaError_t with_parts(const MatmulShape& shape, Run&& run) {
  auto with_type = [&](auto type) {
    if (!shape.f8_weight) return run(type, std::integral_constant<int, 0>());
    if (shape.m > kMostRowsInParts) return run(type, std::integral_constant<int, 1>());
    return run(type, std::integral_constant<int, kPartsOf<decltype(type)>>());
  };
  return shape.in == DType::kBF16 ? with_type(__nv_bfloat16()) : with_type(__half());
}

// with_stages_of_many<..>(T, parts, rows, run): calls run(T, Stages()) with what more than 64 rows take. What
// is brought of x, multiplied and passed on is as much as there is room for, whatever rows x has: so there
// are several sizes. More than 128 rows are multiplied by wide strips of 16 bits in one piece alone: the sums
// of parts would leave no room for stages, those of codes no registers.
template <int kWarpgroups, int kSharing, bool kDivided, typename T, int kParts, typename Run>
cudaError_t with_stages_of_many(T type, std::integral_constant<int, kParts>, int64_t rows, Run&& run) {
  if constexpr (kParts <= 1) {
    if (rows <= 96) return run(type, Stages<kParts, 96, kWarpgroups, kSharing, kDivided>());
    if (rows <= 128) return run(type, Stages<kParts, 128, kWarpgroups, kSharing, kDivided>());
  }
  if constexpr (kParts == 0 && kWarpgroups == 2 && !kDivided) {
    if (rows <= 192) return run(type, Stages<kParts, 192, kWarpgroups, kSharing, kDivided>());
    if (rows <= 256) return run(type, Stages<kParts, 256, kWarpgroups, kSharing, kDivided>());
  }
  return cudaErrorInvalidValue;
}

// with_stages(shape, run): calls run(T(), Stages()) with what the shape takes; with_stages<2>(shape, run):
// with wide strips, the only ones here for more than 64 rows; with_stages<2, n>(shape, run): for so many rows
// alone, with two or four blocks that share x.
template <int kWarpgroups = 1, int kSharing = 1, typename Run>
cudaError_t with_stages(const MatmulShape& shape, Run&& run) {
  const int64_t rows = shape.m;
  return with_parts(shape, [&]<typename T, int kParts>(T type, std::integral_constant<int, kParts> parts) {
    if constexpr (kWarpgroups == 2) {
      if (rows > kMostRowsOfNarrow)
        return with_stages_of_many<kWarpgroups, kSharing, false>(type, parts, rows, run);
    }
    if constexpr (kSharing == 1 && kParts != 1) {
      if constexpr (kWarpgroups == 1) {
        if (rows <= 8) return run(type, Stages<kParts, 8>());
      }
      if (rows <= 16) return run(type, Stages<kParts, 16, kWarpgroups>());
      if (rows <= kMostRowsInParts) return run(type, Stages<kParts, kMostRowsInParts, kWarpgroups>());
    }
    if constexpr (kSharing == 1 && kParts <= 1) {
      if (rows <= kMostRowsOfNarrow) return run(type, Stages<kParts, kMostRowsOfNarrow, kWarpgroups>());
    }
    return cudaErrorInvalidValue;
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

// W of a gated product as [groups of eight rows, gate or not, row of the group, column], read in boxes of
// `box_groups` of the gate and the same of what they let through.
inline TensorMapShape gated_rows_of(DType dtype, const void* data, const MatmulShape& shape, int box_groups) {
  const int64_t half = shape.n / 2;
  return {.dtype = dtype,
          .data = data,
          .dimensions = 4,
          .sizes = {shape.k, kGroupRows, 2, half / kGroupRows},
          .strides = {shape.k, half * shape.k, kGroupRows * shape.k},
          .box = {box_columns(dtype), kGroupRows, 2, box_groups}};
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
    void (*kernel)(
        CUtensorMap, CUtensorMap, StreamArgs, const float*, const T*, void*, device::PeerTerms, Rest...),
    S,
    const StreamCall& call,
    int64_t blocks,
    int cluster_blocks,
    Rest... rest) {
  static_assert(!S::kF8 || S::kXRows <= StreamMemory::kMostCodeRows);
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
    // Rows that x does not have are whatever was there: columns of a product that nobody stores.
    const uint8_t* codes = call.memory.codes;
    error = call.encoder.encode(
        S::kF8 ? rows_of(weight, codes, shape.k, S::kXRows, shape.k, S::kXRowsBrought)
               : rows_of(shape.in, operands.x, shape.k, shape.m, shape.x_stride, S::kXRowsBrought),
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
                           operands.terms,
                           rest...);
}

}  // namespace llm_dist::kernels::streamed
