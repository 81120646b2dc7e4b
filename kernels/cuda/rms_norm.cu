// RMSNorm, alone and behind the residual addition, and the addition alone. A block a row; a row stays in
// registers as far as it fits, the rest is read twice, the second time from cache, by the thread that touched
// the same elements before.
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

namespace llm_dist::kernels {
namespace {

constexpr int kMaxThreads = 512;

// Adds `x` to `residual` when kAdd, rounding to T, and norms the sum; else norms x.
template <typename T, int kVec, bool kAdd>
__global__ void norm_rows(RowView<const T> x,
                          RowView<T> residual,
                          const T* __restrict__ weight,
                          float epsilon,
                          RowView<T> out,
                          int width) {
  const int64_t row = blockIdx.x;
  const T* x_row = x.row(row);
  T* residual_row = kAdd ? residual.row(row) : nullptr;
  const int first = static_cast<int>(threadIdx.x) * kVec;
  const int step = static_cast<int>(blockDim.x) * kVec;
  // The weights do not wait for the sum.
  float weights[kVec] = {};
  if (first < width) load_vec<kVec>(weight + first, weights);
  let_next_start();
  wait_for_previous();
  float kept[kVec] = {};
  float squares = 0;
  for (int i = first; i < width; i += step) {
    float values[kVec];
    load_vec<kVec>(x_row + i, values);
    if constexpr (kAdd) {
      float before[kVec];
      load_vec<kVec>(residual_row + i, before);
#pragma unroll
      for (int v = 0; v < kVec; ++v) values[v] = to_float_dev(from_float_dev<T>(values[v] + before[v]));
      store_vec<kVec>(values, residual_row + i);
    }
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      squares += values[v] * values[v];
      if (i == first) kept[v] = values[v];
    }
  }
  const float mean = block_reduce(squares, AddOp()) / static_cast<float>(width);
  const float scale = rsqrtf(mean + epsilon);
  const T* from = kAdd ? residual_row : x_row;
  T* out_row = out.row(row);
  for (int i = first; i < width; i += step) {
    if (i != first) {
      load_vec<kVec>(from + i, kept);
      load_vec<kVec>(weight + i, weights);
    }
    float values[kVec];
#pragma unroll
    for (int v = 0; v < kVec; ++v) values[v] = kept[v] * scale * weights[v];
    store_vec<kVec>(values, out_row + i);
  }
}

template <typename T, int kVec>
__global__ void add_rows(RowView<T> a, RowView<const T> b, int width) {
  const int64_t row = blockIdx.x;
  const int i = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  if (i >= width) return;
  float sum[kVec];
  float other[kVec];
  load_vec<kVec>(a.row(row) + i, sum);
  load_vec<kVec>(b.row(row) + i, other);
#pragma unroll
  for (int v = 0; v < kVec; ++v) sum[v] += other[v];
  store_vec<kVec>(sum, a.row(row) + i);
}

void check_alike(const Tensor& a, const Tensor& b) {
  CHECK(a.dtype == b.dtype && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1),
        "{} beside {}",
        a.to_string(),
        b.to_string());
}

}  // namespace

void rms_norm_cuda(OpState&, device::Stream& stream, const RmsNormParams& params) {
  check_alike(params.x, params.out);
  CHECK(params.weight.dtype == params.x.dtype && params.weight.numel() == params.x.dim(1),
        "weight {}",
        params.weight.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  const int64_t rows = params.x.dim(0);
  const int64_t width = params.x.dim(1);
  if (rows == 0 || width == 0 || !cuda.enter()) return;
  with_activation_type(params.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(is_vectorizable(params.x, params.weight, params.out), [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      norm_rows<T, kVec, false><<<static_cast<unsigned>(rows),
                                  threads_for(ceil_div(width, kVec), kMaxThreads),
                                  0,
                                  cuda.handle()>>>(rows_as<const T>(params.x),
                                                   {},
                                                   static_cast<const T*>(params.weight.data),
                                                   params.epsilon,
                                                   rows_as<T>(params.out),
                                                   static_cast<int>(width));
    });
  });
  cuda.check(cudaGetLastError(), "rms_norm");
}

void add_rms_norm_cuda(OpState&, device::Stream& stream, const AddRmsNormParams& params) {
  check_alike(params.x, params.out);
  check_alike(params.x, params.residual);
  CHECK(params.weight.dtype == params.x.dtype && params.weight.numel() == params.x.dim(1),
        "weight {}",
        params.weight.to_string());
  device::CudaStream& cuda = device::as_cuda(stream);
  const int64_t rows = params.x.dim(0);
  const int64_t width = params.x.dim(1);
  if (rows == 0 || width == 0 || !cuda.enter()) return;
  with_activation_type(params.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(is_vectorizable(params.x, params.residual, params.weight, params.out), [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      launch_overlapped(norm_rows<T, kVec, true>,
                        dim3(static_cast<unsigned>(rows)),
                        threads_for(ceil_div(width, kVec), kMaxThreads),
                        cuda.handle(),
                        rows_as<const T>(params.x),
                        rows_as<T>(params.residual),
                        static_cast<const T*>(params.weight.data),
                        params.epsilon,
                        rows_as<T>(params.out),
                        static_cast<int>(width));
    });
  });
  cuda.check(cudaGetLastError(), "add_rms_norm");
}

void add_cuda(OpState&, device::Stream& stream, const AddParams& params) {
  check_alike(params.a, params.b);
  device::CudaStream& cuda = device::as_cuda(stream);
  const int64_t rows = params.a.dim(0);
  const int64_t width = params.a.dim(1);
  if (rows == 0 || width == 0 || !cuda.enter()) return;
  constexpr int kThreads = 128;
  with_activation_type(params.a.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(is_vectorizable(params.a, params.b), [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(width, kThreads * kVec)));
      add_rows<T, kVec><<<grid, kThreads, 0, cuda.handle()>>>(
          rows_as<T>(params.a), rows_as<const T>(params.b), static_cast<int>(width));
    });
  });
  cuda.check(cudaGetLastError(), "add");
}

}  // namespace llm_dist::kernels
