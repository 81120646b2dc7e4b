// A block a row, which is read twice, the second time from cache.
#include <cuda_fp8.h>

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/quantize_rows.h"

namespace llm_dist::kernels {
namespace {

constexpr float kLeastMagnitude = 1e-30f;  // keeps a row of zeros from dividing by zero

template <typename T>
__global__ void quantize_rows(RowView<const T> x, int k, uint8_t* codes, float* scales) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* from = x.row(row);
  const int first = static_cast<int>(threadIdx.x) * kVecWidth;
  const int step = static_cast<int>(blockDim.x) * kVecWidth;
  float values[kVecWidth];
  float largest = kLeastMagnitude;
  for (int i = first; i < k; i += step) {
    load_vec<kVecWidth>(from + i, values);
#pragma unroll
    for (float value : values) largest = fmaxf(largest, fabsf(value));
  }
  largest = block_reduce(largest, MaxOp());
  const float factor = kLargestF8E4M3 / largest;
  for (int i = first; i < k; i += step) {
    load_vec<kVecWidth>(from + i, values);
    uint2 packed = {0, 0};
    auto* pairs = reinterpret_cast<__nv_fp8x2_storage_t*>(&packed);
#pragma unroll
    for (int pair = 0; pair < kVecWidth / 2; ++pair) {
      const float2 scaled = make_float2(values[2 * pair] * factor, values[2 * pair + 1] * factor);
      pairs[pair] = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
    }
    *reinterpret_cast<uint2*>(codes + row * k + i) = packed;
  }
  if (threadIdx.x == 0) scales[row] = largest / kLargestF8E4M3;
}

template <typename T>
void launch(const QuantizeRows& rows, cudaStream_t stream) {
  constexpr int kMostThreads = 512;
  launch_overlapped(quantize_rows<T>,
                    dim3(static_cast<unsigned>(rows.rows)),
                    threads_for(rows.k / kVecWidth, kMostThreads),
                    stream,
                    RowView<const T>{static_cast<const T*>(rows.x), rows.x_stride},
                    static_cast<int>(rows.k),
                    rows.codes,
                    rows.scales);
}

}  // namespace

cudaError_t launch_quantize_rows(const QuantizeRows& rows, cudaStream_t stream) {
  if (rows.in == DType::kBF16) {
    launch<__nv_bfloat16>(rows, stream);
  } else {
    launch<__half>(rows, stream);
  }
  return cudaGetLastError();
}

}  // namespace llm_dist::kernels
