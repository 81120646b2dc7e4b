// A warp has one or two rows of W and walks along k with eight 16-byte loads of them in flight, each replaced
// as soon as it has been multiplied; x comes from cache. The first loads of W do not wait for x, whose kernel
// may still run.
// Sums are taken in float, in an order that depends on k alone; scales of rows multiply them at the end.
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/skinny_linear.h"

namespace llm_dist::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kLoads = 8;  // of W in flight

// Elements of a 16-byte load of W.
template <typename W>
constexpr int kLoadWidth = 16 / sizeof(W);

// Elements 2 i and 2 i + 1 of a load, as floats.
template <typename W>
__device__ inline float2 weight_pair(const uint4& load, int i) {
  const auto* words = reinterpret_cast<const uint32_t*>(&load);
  if constexpr (sizeof(W) == 2) return pair_of(W(), words[i]);
  const auto codes = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (i % 2 * 16));
  return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
}

struct SkinnyArgs {
  int64_t n;  // columns of y
  int64_t k;
  int64_t x_stride;
  int64_t y_stride;
};

// Of a processor: as many registers a thread as its conversions take.
template <typename W>
constexpr int kBlocks = sizeof(W) == 1 ? 7 : 8;
// Above, a warp has two columns of y: one each would be more warps than fit an H100 or H200 at once.
template <typename W>
constexpr int64_t kManyColumns = int64_t{132} * kBlocks<W> * kWarps;
// What a warp loads at once.
template <typename W>
constexpr int kStep = kWarpSize * kLoadWidth<W>;

// Read once: it would only push x out of the cache.
__device__ inline uint4 load_streaming(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

template <typename W, typename T, int kRowsW>
__device__ inline void add_products(float (&sums)[kRowsW], const uint4 (&w)[kRowsW], const T* x) {
#pragma unroll
  for (int piece = 0; piece < kLoadWidth<W> / kVecWidth; ++piece) {
    const uint4 raw = reinterpret_cast<const uint4*>(x)[piece];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float2 pair = pair_of(T(), reinterpret_cast<const uint32_t*>(&raw)[word]);
#pragma unroll
      for (int r = 0; r < kRowsW; ++r) {
        const float2 weight = weight_pair<W>(w[r], piece * 4 + word);
        sums[r] += weight.x * pair.x;
        sums[r] += weight.y * pair.y;
      }
    }
  }
}

// This lane's load of each row, `at` elements behind its first one, unless the row ends before.
template <typename W, int kRowsW>
__device__ inline void load_rows(uint4 (&loaded)[kRowsW], const W* const (&rows)[kRowsW], int at, int mine) {
  if (at >= mine) return;
#pragma unroll
  for (int r = 0; r < kRowsW; ++r) loaded[r] = load_streaming(rows[r] + at);
}

// x is not __restrict__: its loads must stay behind the wait.
// Gated: a warp has, of each of its columns, row i for the gate and row n + i for what it lets through.
template <typename T, typename W, typename Out, int kColumns, bool kGated>
__global__ void __launch_bounds__(kThreads, kBlocks<W>)
    skinny_linear(SkinnyArgs args, const T* x, const W* w, const float* w_scales, const T* bias, Out* y) {
  constexpr int kRowsW = kGated ? 2 * kColumns : kColumns;
  constexpr int kAhead = kLoads / kRowsW;
  constexpr int kRound = kAhead * kStep<W>;
  const int k = static_cast<int>(args.k);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  const int64_t first = warp * kColumns;
  // Columns that are not there are read as the last one.
  auto row_of = [&](int r) {
    const int64_t column = first + r % kColumns;
    return (column < args.n ? column : args.n - 1) + r / kColumns * args.n;
  };
  const W* rows[kRowsW];
#pragma unroll
  for (int r = 0; r < kRowsW; ++r) rows[r] = w + row_of(r) * args.k + lane * kLoadWidth<W>;
  uint4 loaded[kAhead][kRowsW];
  const int mine = k - lane * kLoadWidth<W>;  // elements of a row from this lane's first on
#pragma unroll
  for (int a = 0; a < kAhead; ++a) load_rows<W>(loaded[a], rows, a * kStep<W>, mine);
  let_next_start();
  wait_for_previous();
  if (first >= args.n) return;

  const T* x_at = x + blockIdx.y * args.x_stride + lane * kLoadWidth<W>;
  float sums[kRowsW] = {};
  // What has been multiplied makes room for what comes a round later.
  int at = 0;
#pragma unroll 1
  for (; at + kRound <= k; at += kRound) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      add_products<W>(sums, loaded[a], x_at + at + a * kStep<W>);
      load_rows<W>(loaded[a], rows, at + kRound + a * kStep<W>, mine);
    }
  }
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
    if (at + a * kStep<W> < mine) add_products<W>(sums, loaded[a], x_at + at + a * kStep<W>);
  }
#pragma unroll
  for (int r = 0; r < kRowsW; ++r) {
    sums[r] = warp_reduce(sums[r], AddOp());
    if (w_scales != nullptr) sums[r] *= w_scales[row_of(r)];
    if (bias != nullptr) sums[r] += to_float_dev(bias[row_of(r)]);
  }
  if (lane != 0) return;
  Out* to = y + blockIdx.y * args.y_stride + first;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (first + c >= args.n) return;
    to[c] = from_float_dev<Out>(kGated ? silu(sums[c]) * sums[kRowsW - kColumns + c] : sums[c]);
  }
}

// The same an element at a time, for rows of W that are no whole loads.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) scattered_f8_linear(
    SkinnyArgs args, const T* x, const __nv_fp8_e4m3* w, const float* w_scales, const T* bias, Out* y) {
  let_next_start();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  if (row >= args.n) return;
  float sum = 0;
  for (int64_t i = lane; i < args.k; i += kWarpSize)
    sum += static_cast<float>(w[row * args.k + i]) * to_float_dev(x[blockIdx.y * args.x_stride + i]);
  sum = warp_reduce(sum, AddOp());
  if (lane != 0) return;
  const float offset = bias == nullptr ? 0.0f : to_float_dev(bias[row]);
  y[blockIdx.y * args.y_stride + row] = from_float_dev<Out>(sum * w_scales[row] + offset);
}

template <typename T, typename W, typename Out>
void launch(void (*kernel)(SkinnyArgs, const T*, const W*, const float*, const T*, Out*),
            int columns_of_warp,
            const MatmulShape& shape,
            const MatmulOperands& operands,
            cudaStream_t stream) {
  constexpr int64_t kMostRows = 65535;  // of a grid
  const SkinnyArgs args{
      .n = shape.columns(), .k = shape.k, .x_stride = shape.x_stride, .y_stride = shape.y_stride};
  const int64_t blocks = ceil_div(args.n, int64_t{kWarps} * columns_of_warp);
  for (int64_t first = 0; first < shape.m; first += kMostRows) {
    const int64_t rows = std::min(kMostRows, shape.m - first);
    launch_overlapped(kernel,
                      dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(rows)),
                      kThreads,
                      stream,
                      args,
                      static_cast<const T*>(operands.x) + first * args.x_stride,
                      static_cast<const W*>(operands.w),
                      operands.w_scales,
                      static_cast<const T*>(operands.bias),
                      static_cast<Out*>(operands.y) + first * args.y_stride);
  }
}

bool is_in_whole_loads(const MatmulShape& shape) {
  const int width = shape.f8_weight ? kLoadWidth<__nv_fp8_e4m3> : kVecWidth;
  return shape.alignment >= 16 && shape.k % width == 0 && (shape.m == 1 || shape.x_stride % kVecWidth == 0);
}

template <typename T, typename W, typename Out>
void launch_rows(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  if constexpr (sizeof(W) == 1) {
    if (!is_in_whole_loads(shape)) return launch(scattered_f8_linear<T, Out>, 1, shape, operands, stream);
  }
  if (shape.gated) return launch(skinny_linear<T, W, Out, 1, true>, 1, shape, operands, stream);
  if (shape.n > kManyColumns<W>)
    return launch(skinny_linear<T, W, Out, 2, false>, 2, shape, operands, stream);
  launch(skinny_linear<T, W, Out, 1, false>, 1, shape, operands, stream);
}

template <typename T, typename W>
void launch_out(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  if (shape.out == DType::kF32) return launch_rows<T, W, float>(shape, operands, stream);
  launch_rows<T, W, T>(shape, operands, stream);
}

template <typename T>
void launch_weight(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  if (shape.f8_weight) return launch_out<T, __nv_fp8_e4m3>(shape, operands, stream);
  launch_out<T, T>(shape, operands, stream);
}

}  // namespace

bool takes_skinny_linear(const MatmulShape& shape) {
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  const bool any_shape = shape.f8_weight && !shape.gated;
  const bool one_row = shape.m == 1 || shape.f8_weight;
  return short_floats && (any_shape || (one_row && is_in_whole_loads(shape)));
}

cudaError_t launch_skinny_linear(const MatmulShape& shape,
                                 const MatmulOperands& operands,
                                 cudaStream_t stream) {
  if (shape.in == DType::kBF16) {
    launch_weight<__nv_bfloat16>(shape, operands, stream);
  } else {
    launch_weight<__half>(shape, operands, stream);
  }
  return cudaGetLastError();
}

}  // namespace llm_dist::kernels
