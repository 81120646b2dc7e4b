// A block a row.
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_codes.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantize_rows.h"

namespace llm_dist::kernels {
namespace {

constexpr int kWidth = kVecWidth;

// What a row that is taken in parts is multiplied by: of a power of two nothing is rounded, to between 128
// and 256, of those that f8_e4m3 has.
__device__ inline float lift_of(float largest) {
  constexpr uint32_t kLift = 127 + 7;
  const uint32_t exponent = __float_as_uint(largest) >> 23;
  if (exponent == 255) return NAN;  // E4M3 has no infinity: it would become a number
  return __uint_as_float(min(kLift + 127 - exponent, 254u) << 23);
}

// Eight elements, scaled already, and what their codes leave over.
__device__ inline uint2 take_codes(float (&values)[kWidth]) {
  uint2 packed = {0, 0};
  auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&packed);
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const __nv_fp8x2_storage_t pair = pair_of_codes(values[i], values[i + 1]);
    const float2 taken = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    pairs[i / 2] = pair;
    values[i] = (values[i] - taken.x) * kPartLift;
    values[i + 1] = (values[i + 1] - taken.y) * kPartLift;
  }
  return packed;
}

constexpr int kMostThreads = 1024;
constexpr int kKept = 2;  // vectors of a row that a thread keeps; what is longer is read again

// Of the whole block; all threads get it.
__device__ inline float largest_of_block(float value) {
  __shared__ float partial[kMostThreads / kWarpSize];
  value = warp_reduce(value, MaxOp());
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  if (lane == 0) partial[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  return warp_reduce(lane < static_cast<int>(blockDim.x) / kWarpSize ? partial[lane] : 0.0f, MaxOp());
}

template <typename T, int kParts>
__global__ void __launch_bounds__(kMostThreads, 1)
    quantize_rows(RowView<const T> x, int k, int64_t part_bytes, uint8_t* codes, float* scales) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* from = x.row(row);
  const int first = static_cast<int>(threadIdx.x) * kWidth;
  const int step = static_cast<int>(blockDim.x) * kWidth;
  float kept[kKept][kWidth] = {};
  float values[kWidth];
  CodeScale of_row;
  auto look_at = [&](const float(&some)[kWidth]) {
#pragma unroll
    for (float value : some) of_row.look_at(value);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * step < k) load_vec<kWidth>(from + first + i * step, kept[i]);
  }
#pragma unroll
  for (const auto& some : kept) look_at(some);
  for (int i = first + kKept * step; i < k; i += step) {
    load_vec<kWidth>(from + i, values);
    look_at(values);
  }
  of_row.largest = largest_of_block(of_row.largest);
  const float factor = kParts == 1 ? of_row.factor() : lift_of(of_row.largest);
  auto write = [&](int i, float(&some)[kWidth]) {
#pragma unroll
    for (float& value : some) value *= factor;
    uint8_t* to = codes + row * k + i;
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      *reinterpret_cast<uint2*>(to + part * part_bytes) = take_codes(some);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (first + i * step < k) write(first + i * step, kept[i]);
  }
  for (int i = first + kKept * step; i < k; i += step) {
    load_vec<kWidth>(from + i, values);
    write(i, values);
  }
  if (threadIdx.x == 0) scales[row] = kParts == 1 ? of_row.scale() : 1 / factor;
}

template <typename T, int kParts>
void launch(const QuantizeRows& rows, cudaStream_t stream) {
  launch_overlapped(quantize_rows<T, kParts>,
                    dim3(static_cast<unsigned>(rows.rows)),
                    threads_for(rows.k / kWidth, kMostThreads),
                    stream,
                    RowView<const T>{static_cast<const T*>(rows.x), rows.x_stride},
                    static_cast<int>(rows.k),
                    rows.part_rows * rows.k,
                    rows.codes,
                    rows.scales);
}

// kParts: that hold an element of T whole.
template <typename T, int kParts>
void launch_parts(const QuantizeRows& rows, cudaStream_t stream) {
  if (rows.parts == kParts) return launch<T, kParts>(rows, stream);
  CHECK(rows.parts == 1);
  launch<T, 1>(rows, stream);
}

}  // namespace

cudaError_t launch_quantize_rows(const QuantizeRows& rows, cudaStream_t stream) {
  if (rows.in == DType::kBF16) {
    launch_parts<__nv_bfloat16, 2>(rows, stream);
  } else {
    launch_parts<__half, 3>(rows, stream);
  }
  return cudaGetLastError();
}

}  // namespace llm_dist::kernels
