// A warp has one or two rows of W and walks along k with eight 16-byte loads of them in flight; x comes from
// cache. The first loads of W do not wait for x, whose kernel may still run.
// Sums are taken in float, in an order that depends on k alone.
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/skinny_linear.h"

namespace llm_dist::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kStep = kWarpSize * kVecWidth;
constexpr int kLoads = 8;            // of W in flight
constexpr int64_t kManyRows = 8192;  // of W; below, warps of one row each keep the device busier

struct SkinnyArgs {
  int64_t n;
  int64_t k;
};

// Read once: it would only push x out of the cache.
__device__ inline uint4 load_streaming(const void* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// The low and the high element of a word, as floats.
__device__ inline float2 pair_of(__nv_bfloat16, uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline float2 pair_of(__half, uint32_t word) {
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

template <typename T, int kRowsW>
__device__ inline void add_products(float (&sums)[kRowsW], const uint4 (&w)[kRowsW], const T* x) {
  const uint4 raw = *reinterpret_cast<const uint4*>(x);
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const float2 pair = pair_of(T(), reinterpret_cast<const uint32_t*>(&raw)[word]);
#pragma unroll
    for (int r = 0; r < kRowsW; ++r) {
      const float2 weight = pair_of(T(), reinterpret_cast<const uint32_t*>(&w[r])[word]);
      sums[r] += weight.x * pair.x;
      sums[r] += weight.y * pair.y;
    }
  }
}

template <typename T, int kAhead, int kRowsW>
__device__ inline void load_ahead(uint4 (&loaded)[kAhead][kRowsW],
                                  const T* const (&rows)[kRowsW],
                                  int64_t at) {
#pragma unroll
  for (int a = 0; a < kAhead; ++a) {
#pragma unroll
    for (int r = 0; r < kRowsW; ++r) loaded[a][r] = load_streaming(rows[r] + at + a * kStep);
  }
}

// x is not __restrict__: its loads must stay behind the wait.
template <typename T, typename Out, int kRowsW>
__global__ void __launch_bounds__(kThreads)
    skinny_linear(SkinnyArgs args, const T* x, const T* w, const T* bias, Out* y) {
  constexpr int kAhead = kLoads / kRowsW;
  constexpr int64_t kRound = kAhead * kStep;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpSize;
  const int64_t first = warp * kRowsW;
  const T* rows[kRowsW];
#pragma unroll
  for (int r = 0; r < kRowsW; ++r) {
    const int64_t row = first + r < args.n ? first + r : args.n - 1;
    rows[r] = w + row * args.k + lane * kVecWidth;
  }
  uint4 loaded[kAhead][kRowsW];
  if (kRound <= args.k) load_ahead<T>(loaded, rows, 0);
  let_next_start();
  wait_for_previous();
  if (first >= args.n) return;

  const T* x_at = x + lane * kVecWidth;
  float sums[kRowsW] = {};
  int64_t at = 0;
#pragma unroll 1
  while (at + kRound <= args.k) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      add_products(sums, loaded[a], x_at + at + a * kStep);
    }
    at += kRound;
    if (at + kRound <= args.k) load_ahead<T>(loaded, rows, at);
  }
  for (; at + lane * kVecWidth < args.k; at += kStep) {
    uint4 last[kRowsW];
#pragma unroll
    for (int r = 0; r < kRowsW; ++r) last[r] = load_streaming(rows[r] + at);
    add_products(sums, last, x_at + at);
  }
#pragma unroll
  for (int r = 0; r < kRowsW; ++r) {
    const float sum = warp_reduce(sums[r], AddOp());
    const int64_t row = first + r;
    if (lane != 0 || row >= args.n) continue;
    const float offset = bias == nullptr ? 0.0f : to_float_dev(bias[row]);
    y[row] = from_float_dev<Out>(sum + offset);
  }
}

template <typename T, typename Out, int kRowsW>
void launch(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  const SkinnyArgs args{.n = shape.n, .k = shape.k};
  const auto blocks = static_cast<unsigned>(ceil_div(shape.n, int64_t{kWarps} * kRowsW));
  launch_overlapped(skinny_linear<T, Out, kRowsW>,
                    dim3(blocks),
                    kThreads,
                    stream,
                    args,
                    static_cast<const T*>(operands.x),
                    static_cast<const T*>(operands.w),
                    static_cast<const T*>(operands.bias),
                    static_cast<Out*>(operands.y));
}

template <typename T, typename Out>
void launch_rows(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  if (shape.n > kManyRows) return launch<T, Out, 2>(shape, operands, stream);
  launch<T, Out, 1>(shape, operands, stream);
}

template <typename T>
void launch_out(const MatmulShape& shape, const MatmulOperands& operands, cudaStream_t stream) {
  if (shape.out == DType::kF32) return launch_rows<T, float>(shape, operands, stream);
  launch_rows<T, T>(shape, operands, stream);
}

}  // namespace

bool takes_skinny_linear(const MatmulShape& shape) {
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  return shape.m == 1 && short_floats && shape.alignment >= 16 && shape.k % kVecWidth == 0;
}

cudaError_t launch_skinny_linear(const MatmulShape& shape,
                                 const MatmulOperands& operands,
                                 cudaStream_t stream) {
  if (shape.in == DType::kBF16) {
    launch_out<__nv_bfloat16>(shape, operands, stream);
  } else {
    launch_out<__half>(shape, operands, stream);
  }
  return cudaGetLastError();
}

}  // namespace llm_dist::kernels
