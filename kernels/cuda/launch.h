// What every CUDA op's launcher shares: views of rows, the choice of element type and access width, and the
// check behind a launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/overlapped_launch.h"
#include "src/base/tensor.h"
#include "src/device/cuda/cuda_stream.h"

namespace llm_dist::kernels {

inline constexpr int kWarpSize = 32;
inline constexpr int kVecWidth = 8;  // elements of one vector access

// Rows of a matrix, strides in elements.
template <typename T>
struct RowView {
  T* data = nullptr;
  int64_t stride = 0;
  __host__ __device__ T* row(int64_t i) const { return data + i * stride; }
};

inline void check_rows(const Tensor& tensor) {
  CHECK_EQ(int{tensor.rank}, 2);
  CHECK(tensor.dim(1) <= 1 || tensor.stride(1) == 1, "rows of {} are not contiguous", tensor.to_string());
}

template <typename T>
RowView<T> rows_as(const Tensor& tensor) {
  check_rows(tensor);
  return {static_cast<T*>(tensor.data), tensor.stride(0)};
}

// A contiguous vector of `count` or more i32.
inline int32_t* i32_vector(const Tensor& tensor, int64_t count) {
  CHECK(tensor.rank == 1 && tensor.dim(0) >= count && (count <= 1 || tensor.stride(0) == 1),
        "{} as {} contiguous i32",
        tensor.to_string(),
        count);
  return tensor.as<int32_t>();
}

// Whether runs of kVecWidth elements starting at each row are 16-byte aligned.
inline bool is_vectorizable(const Tensor& tensor) {
  const bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % 16 == 0;
  const bool rows = tensor.rank < 2 || tensor.stride(0) % kVecWidth == 0;
  return aligned && rows && tensor.dim(tensor.rank - 1) % kVecWidth == 0;
}
template <typename... Rest>
bool is_vectorizable(const Tensor& first, const Rest&... rest) {
  return is_vectorizable(first) && is_vectorizable(rest...);
}

// Calls run(T{}) with the element type of an activation.
template <typename Run>
void with_activation_type(DType dtype, Run&& run) {
  switch (dtype) {
    case DType::kF32: return run(float{});
    case DType::kBF16: return run(__nv_bfloat16{});
    case DType::kF16: return run(__half{});
    default: CHECK(false, "activations in {}", dtype);
  }
}

// Calls run(Kv{}) with the element type of a KV cache beside activations of T.
template <typename T, typename Run>
void with_kv_type(DType activations, DType cache, Run&& run) {
  if (cache == DType::kF8E4M3) return run(__nv_fp8_e4m3{});
  CHECK_EQ(cache, activations);
  run(T{});
}

// Calls run with the access width as a type whose value is kVecWidth or 1.
template <int kValue>
struct IntConstant {
  static constexpr int value = kValue;
};
template <typename Run>
void with_vec_width(bool vectorizable, Run&& run) {
  if (vectorizable) {
    run(IntConstant<kVecWidth>{});
  } else {
    run(IntConstant<1>{});
  }
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Threads of a block that walks `items` items: whole warps, at most `most`.
inline int threads_for(int64_t items, int most) {
  const int64_t wanted = ceil_div(items < 1 ? 1 : items, kWarpSize) * kWarpSize;
  return static_cast<int>(wanted < most ? wanted : most);
}

}  // namespace llm_dist::kernels
