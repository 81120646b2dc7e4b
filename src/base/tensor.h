// Tensor: a view {pointer, dtype, shape, strides, device}. It owns nothing; device::Buffer owns. Trivially
// copyable, so op parameters that hold tensors travel through a stream's queue without an allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "src/base/check.h"
#include "src/base/dtype.h"

namespace llm_dist {

enum class DeviceType : uint8_t { kCpu, kCuda };
std::string_view to_string(DeviceType type);

// A tag only: nothing here talks to a device.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int16_t index = 0;
  bool operator==(const Device&) const = default;
};

struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  uint8_t rank = 0;
  Device device;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> strides{};  // in elements

  // A contiguous (row-major) view.
  static Tensor contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {});

  int64_t dim(int axis) const {
    CHECK(axis >= 0 && axis < rank, "axis {} of a rank-{} tensor", axis, int{rank});
    return shape[static_cast<size_t>(axis)];
  }
  int64_t stride(int axis) const {
    CHECK(axis >= 0 && axis < rank, "axis {} of a rank-{} tensor", axis, int{rank});
    return strides[static_cast<size_t>(axis)];
  }
  int64_t numel() const;
  int64_t bytes() const { return numel() * dtype_bytes(dtype); }  // of a contiguous tensor
  bool is_contiguous() const;

  // Rows [begin, begin + count) of axis 0; no copy.
  Tensor rows(int64_t begin, int64_t count) const;
  // Elements [begin, begin + count) of `axis`; no copy, generally not contiguous.
  Tensor narrow(int axis, int64_t begin, int64_t count) const;
  // Another shape over the same contiguous elements.
  Tensor reshaped(std::initializer_list<int64_t> new_shape) const;

  template <typename T>
  T* as() const {
    CHECK(dtype == DTypeOf<T>::kValue, "tensor holds {}, asked for {}", dtype, DTypeOf<T>::kValue);
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  std::string to_string() const;  // "bf16[4, 576] cpu:0"
};

}  // namespace llm_dist
