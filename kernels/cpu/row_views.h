// Rows of a matrix of activations as the CPU ops walk them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/base/tensor.h"

namespace llm_dist::kernels {

struct Rows {
  std::byte* data = nullptr;
  int64_t count = 0;
  int64_t width = 0;
  int64_t stride_bytes = 0;
  DType dtype = DType::kF32;

  template <typename T>
  T* row(int64_t i) const {
    return reinterpret_cast<T*>(data + i * stride_bytes);
  }
};

inline bool is_activation(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

inline Rows rows_of(const Tensor& tensor) {
  CHECK_EQ(int{tensor.rank}, 2);
  CHECK(tensor.dim(1) <= 1 || tensor.stride(1) == 1, "rows of {} are not contiguous", tensor.to_string());
  return {static_cast<std::byte*>(tensor.data),
          tensor.dim(0),
          tensor.dim(1),
          tensor.stride(0) * dtype_bytes(tensor.dtype),
          tensor.dtype};
}

inline Rows activation_rows(const Tensor& tensor) {
  CHECK(is_activation(tensor.dtype), "activations in {}", tensor.dtype);
  return rows_of(tensor);
}

// How many rows of `width` elements are worth a thread of their own.
inline int64_t rows_per_thread(int64_t width) {
  constexpr int64_t kElements = 16384;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, width));
}

// A contiguous vector of `count` or more i32.
inline const int32_t* i32_vector(const Tensor& tensor, int64_t count) {
  CHECK(tensor.rank == 1 && tensor.dim(0) >= count && (count <= 1 || tensor.stride(0) == 1),
        "{} as {} contiguous i32",
        tensor.to_string(),
        count);
  return tensor.as<int32_t>();
}

}  // namespace llm_dist::kernels
