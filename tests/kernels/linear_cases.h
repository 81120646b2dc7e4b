// Random weights and activations for the tests and the benchmark of linear layers.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cpu/quant.h"
#include "src/base/tensor.h"
#include "src/base/weight.h"

namespace llm_dist::kernels {

inline void put(std::byte* dst, DType dtype, int64_t index, float value) {
  std::byte* at = dst + index * dtype_bytes(dtype);
  auto copy = [at](auto stored) { std::memcpy(at, &stored, sizeof stored); };
  if (dtype == DType::kF32) return copy(value);
  if (dtype == DType::kBF16) return copy(to_bf16(value));
  copy(to_f16(value));
}

inline float get(const void* src, DType dtype, int64_t index) {
  const std::byte* at = static_cast<const std::byte*>(src) + index * dtype_bytes(dtype);
  auto load = [at](auto stored) {
    std::memcpy(&stored, at, sizeof stored);
    return to_float(stored);
  };
  if (dtype == DType::kF32) return load(float{});
  return dtype == DType::kBF16 ? load(BFloat16{}) : load(Float16{});
}

// rows × columns of `dtype`, `stride` elements a row, normally distributed.
struct Matrix {
  Matrix(DType type, int64_t rows, int64_t columns, int64_t stride, std::mt19937& random)
      : bytes(static_cast<size_t>(std::max<int64_t>(1, rows * stride) * dtype_bytes(type))) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * stride; ++i) put(bytes.data(), type, i, normal(random));
    view = Tensor::contiguous(bytes.data(), type, {rows, columns});
    view.strides[0] = stride;
  }
  float at(int64_t row, int64_t column) const {
    return get(view.data, view.dtype, row * view.strides[0] + column);
  }

  std::vector<std::byte> bytes;
  Tensor view;
};

// A weight of any scheme with random contents of a sane scale, in GGUF's plain layout.
struct RandomWeight {
  RandomWeight(WeightScheme scheme, int64_t n, int64_t k, std::mt19937& random)
      : bytes(static_cast<size_t>(n * row_bytes(scheme, k))) {
    weight.scheme = scheme;
    weight.n = n;
    weight.k = k;
    weight.parts[0] = Tensor::contiguous(bytes.data(), DType::kU8, {n, row_bytes(scheme, k)});
    if (scheme == WeightScheme::kF8E4M3) {
      fill_f8(random);
    } else if (is_quantized(scheme)) {
      fill_quantized(random);
    } else {
      fill_dense(random);
    }
  }

  void fill_dense(std::mt19937& random) {
    DType dtype = weight.scheme == WeightScheme::kF32   ? DType::kF32
                  : weight.scheme == WeightScheme::kF16 ? DType::kF16
                                                        : DType::kBF16;
    std::normal_distribution<float> normal(0.0f, 0.05f);
    for (int64_t i = 0; i < weight.n * weight.k; ++i) put(bytes.data(), dtype, i, normal(random));
  }
  void fill_f8(std::mt19937& random) {
    std::normal_distribution<float> normal(0.0f, 100.0f);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(to_f8e4m3(normal(random)).bits);
    std::uniform_real_distribution<float> scale(0.0002f, 0.001f);
    scales.resize(static_cast<size_t>(weight.n));
    for (float& value : scales) value = scale(random);
    weight.parts[1] = Tensor::contiguous(scales.data(), DType::kF32, {weight.n});
  }
  void fill_quantized(std::mt19937& random) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const int64_t block_bytes = scheme_traits(weight.scheme).block_bytes;
    std::uniform_real_distribution<float> scale(0.005f, 0.02f);
    for (int64_t at = 0; at < weight.bytes(); at += block_bytes) {
      float d = scale(random);
      put(bytes.data() + at, DType::kF16, 0, d);
      if (weight.scheme == WeightScheme::kQ4_1) put(bytes.data() + at, DType::kF16, 1, -7.3f * d);
    }
  }

  std::vector<std::byte> bytes;
  std::vector<float> scales;  // of f8_e4m3
  Weight weight;
};

}  // namespace llm_dist::kernels
