// RMSNorm, alone and behind the residual addition, and the addition alone. A block a row; a row stays in
// registers as far as it fits, the rest is read twice, the second time from cache, by the thread that touched
// the same elements before.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/row_codes.cuh"
#include "kernels/cuda/device/second_level.cuh"
#include "kernels/cuda/device/terms_of_row.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/row_norm.h"

namespace llm_dist::kernels {
namespace {

__device__ inline void begin_early() {
  let_next_start();
  wait_for_previous();
}

// The sums of a row's elements from i on and those of the residual stream, which they become.
template <int kVec, typename T>
__device__ inline void take_sums(const T* x, T* residual, int i, float (&values)[kVec]) {
  float before[kVec];
  load_vec<kVec>(x + i, values);
  load_vec<kVec>(residual + i, before);
  add_into<kVec>(before, values, residual + i);
}

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
  norm_row<kVec>(
      BlockOfRow(),
      width,
      weight,
      epsilon,
      begin_early,
      [&](int i, float(&values)[kVec]) {
        if constexpr (kAdd) {
          take_sums(x_row, residual_row, i, values);
        } else {
          load_vec<kVec>(x_row + i, values);
        }
      },
      kAdd ? residual_row : x_row,
      out.row(row));
}

// The same with the addition, of rows of one vector a thread at most: the codes of what it would leave.
template <typename T>
__global__ void __launch_bounds__(kMostNormThreads) norm_to_codes(RowView<const T> x,
                                                                  RowView<T> residual,
                                                                  const T* __restrict__ weight,
                                                                  float epsilon,
                                                                  uint8_t* codes,
                                                                  float* scales,
                                                                  int width) {
  constexpr int kVec = kVecWidth;
  const int64_t row = blockIdx.x;
  const T* x_row = x.row(row);
  T* residual_row = residual.row(row);
  float normed[kVec] = {};
  CodeScale of_row;
  norm_row<kVec, true>(
      BlockOfRow(),
      width,
      weight,
      epsilon,
      begin_early,
      [&](int i, float(&values)[kVec]) { take_sums(x_row, residual_row, i, values); },
      static_cast<const T*>(residual_row),
      [&](int, const float(&values)[kVec]) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          normed[v] = to_float_dev(from_float_dev<T>(values[v]));
          of_row.look_at(normed[v]);
        }
      });
  of_row.largest = block_reduce(of_row.largest, MaxOp());
  const int first = static_cast<int>(threadIdx.x) * kVec;
  if (first < width)
    *reinterpret_cast<uint2*>(codes + row * width + first) = eight_codes(normed, of_row.factor());
  if (threadIdx.x == 0) scales[row] = of_row.scale();
}

// A single row that is a sum over ranks, behind the product that has sent this rank's term of it.
template <typename T>
__global__ void __launch_bounds__(kMostNormThreads)
    norm_terms(const __grid_constant__ device::PeerTerms terms,
               T* residual,
               const T* __restrict__ weight,
               float epsilon,
               T* out,
               int width) {
  constexpr int kVec = kVecWidth;
  let_next_start();
  const uint64_t number = load_relaxed(terms.calls) + 1;
  norm_row<kVec, true>(
      BlockOfRow(),
      width,
      weight,
      epsilon,
      [] {},
      [&](int i, float(&values)[kVec]) {
        const uint4 before = load_from_second_level(reinterpret_cast<const uint4*>(residual + i));
        float of_stream[kVec];
        unpack_eight<T>(before, of_stream);
        uint4 sum[1];
        sum_terms<T>(terms, number, i / kVec, 0, width / kVec, sum, [] {});
        unpack_eight<T>(sum[0], values);
        add_into<kVec>(of_stream, values, residual + i);
      },
      static_cast<const T*>(residual),
      out);
  // All have taken their terms before the block added up.
  end_sum_of_terms(terms, number, width / kVec);
  wait_for_previous();
}

static_assert(kMostCodedHidden <= kMostNormThreads * kVecWidth);

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

// Of `rows` rows; strides and the rest as in `of_first`.
struct RowNorms {
  RowNorm of_first;
  int64_t rows = 1;
  int64_t x_stride = 0;
  int64_t residual_stride = 0;
  int64_t out_stride = 0;
};

void launch_add_norm(const RowNorms& norms, bool vectors, cudaStream_t stream) {
  const RowNorm& norm = norms.of_first;
  with_activation_type(norm.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(vectors, [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      launch_overlapped(norm_rows<T, kVec, true>,
                        dim3(static_cast<unsigned>(norms.rows)),
                        norm_threads(norm.width, kVec),
                        stream,
                        RowView<const T>{static_cast<const T*>(norm.x), norms.x_stride},
                        RowView<T>{static_cast<T*>(norm.residual), norms.residual_stride},
                        static_cast<const T*>(norm.weight),
                        norm.epsilon,
                        RowView<T>{static_cast<T*>(norm.out), norms.out_stride},
                        static_cast<int>(norm.width));
    });
  });
}

void launch_norm_to_codes(const RowNorms& norms, const Tensor& scales, cudaStream_t stream) {
  const RowNorm& norm = norms.of_first;
  auto launch = [&](auto type) {
    using T = decltype(type);
    launch_overlapped(norm_to_codes<T>,
                      dim3(static_cast<unsigned>(norms.rows)),
                      norm_threads(norm.width, kVecWidth),
                      stream,
                      RowView<const T>{static_cast<const T*>(norm.x), norms.x_stride},
                      RowView<T>{static_cast<T*>(norm.residual), norms.residual_stride},
                      static_cast<const T*>(norm.weight),
                      norm.epsilon,
                      static_cast<uint8_t*>(norm.out),
                      static_cast<float*>(scales.data),
                      static_cast<int>(norm.width));
  };
  norm.dtype == DType::kF16 ? launch(__half()) : launch(__nv_bfloat16());
}

cudaError_t launch_norm_of_terms(const RowNorm& norm, cudaStream_t stream) {
  auto launch = [&](auto type) {
    using T = decltype(type);
    launch_overlapped(norm_terms<T>,
                      dim3(1),
                      norm_threads(norm.width, kVecWidth),
                      stream,
                      norm.terms,
                      static_cast<T*>(norm.residual),
                      static_cast<const T*>(norm.weight),
                      norm.epsilon,
                      static_cast<T*>(norm.out),
                      static_cast<int>(norm.width));
  };
  norm.dtype == DType::kF16 ? launch(__half()) : launch(__nv_bfloat16());
  return cudaGetLastError();
}

void check_alike(const Tensor& a, const Tensor& b) {
  CHECK(a.dtype == b.dtype && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1),
        "{} beside {}",
        a.to_string(),
        b.to_string());
}

void check_weight(const Tensor& weight, const Tensor& x) {
  CHECK(weight.dtype == x.dtype && weight.numel() == x.dim(1), "weight {}", weight.to_string());
}

bool gives_codes(const AddRmsNormParams& params) { return params.out.dtype == DType::kF8E4M3; }

void check_out(const AddRmsNormParams& params) {
  if (!gives_codes(params)) return check_alike(params.x, params.out);
  const Tensor& x = params.x;
  const Tensor& scales = params.out_scales;
  CHECK((x.dtype == DType::kF16 || x.dtype == DType::kBF16) && x.dim(1) <= kMostCodedHidden &&
            is_vectorizable(x, params.residual, params.weight) && params.out.is_contiguous() &&
            params.out.dim(0) == x.dim(0) && params.out.dim(1) == x.dim(1) && scales.dtype == DType::kF32 &&
            scales.is_contiguous() && scales.numel() == x.dim(0),
        "codes {} with scales {} of {}",
        params.out.to_string(),
        scales.to_string(),
        x.to_string());
}

RowNorms norms_of(const AddRmsNormParams& params) {
  for (const Tensor* rows : {&params.x, &params.residual, &params.out}) check_rows(*rows);
  return {.of_first = {.dtype = params.x.dtype,
                       .x = params.x.data,
                       .residual = params.residual.data,
                       .weight = params.weight.data,
                       .out = params.out.data,
                       .epsilon = params.epsilon,
                       .width = params.x.dim(1)},
          .rows = params.x.dim(0),
          .x_stride = params.x.stride(0),
          .residual_stride = params.residual.stride(0),
          .out_stride = params.out.stride(0)};
}

}  // namespace

cudaError_t load_norms_of_terms() {
  cudaFuncAttributes attributes{};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(norm_terms<__half>));
  if (error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(norm_terms<__nv_bfloat16>));
}

cudaError_t launch_row_norm(const RowNorm& norm, cudaStream_t stream) {
  if (norm.has_terms()) return launch_norm_of_terms(norm, stream);
  launch_add_norm({.of_first = norm}, true, stream);
  return cudaGetLastError();
}

void rms_norm_cuda(OpState&, device::Stream& stream, const RmsNormParams& params) {
  check_alike(params.x, params.out);
  check_weight(params.weight, params.x);
  device::CudaStream& cuda = device::as_cuda(stream);
  const int64_t rows = params.x.dim(0);
  const int64_t width = params.x.dim(1);
  if (rows == 0 || width == 0 || !cuda.enter()) return;
  with_activation_type(params.x.dtype, [&](auto type) {
    using T = decltype(type);
    with_vec_width(is_vectorizable(params.x, params.weight, params.out), [&](auto vec) {
      constexpr int kVec = decltype(vec)::value;
      norm_rows<T, kVec, false><<<static_cast<unsigned>(rows), norm_threads(width, kVec), 0, cuda.handle()>>>(
          rows_as<const T>(params.x),
          {},
          static_cast<const T*>(params.weight.data),
          params.epsilon,
          rows_as<T>(params.out),
          static_cast<int>(width));
    });
  });
  cuda.check(cudaGetLastError(), "rms_norm");
}

void add_rms_norm_cuda(OpState& state, device::Stream& stream, const AddRmsNormParams& params) {
  check_out(params);
  check_alike(params.x, params.residual);
  check_weight(params.weight, params.x);
  device::CudaStream& cuda = device::as_cuda(stream);
  if (params.x.numel() == 0) return;
  const RowNorms norms = norms_of(params);
  const bool codes = gives_codes(params);
  if (norms.rows == 1 && !codes && as_cuda_state(state).fused_row().put_off(norms.of_first, cuda)) return;
  if (!cuda.enter()) return;
  if (codes) {
    launch_norm_to_codes(norms, params.out_scales, cuda.handle());
  } else {
    launch_add_norm(
        norms, is_vectorizable(params.x, params.residual, params.weight, params.out), cuda.handle());
  }
  cuda.check(cudaGetLastError(), "add_rms_norm");
}

bool add_rms_norm_of_terms_cuda(OpState& state,
                                device::Stream& stream,
                                const AddRmsNormOfTermsParams& params) {
  check_alike(params.norm.x, params.norm.out);
  check_alike(params.norm.x, params.norm.residual);
  check_weight(params.norm.weight, params.norm.x);
  CHECK(params.norm.x.dim(0) == 1 && params.terms.size > 1 && params.terms.part_columns == 0,
        "terms of {}",
        params.norm.x.to_string());
  RowNorm norm = norms_of(params.norm).of_first;
  norm.terms = params.terms;
  return as_cuda_state(state).fused_row().put_off(norm, device::as_cuda(stream));
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
