#include "src/base/tensor.h"

namespace llm_dist {
namespace {
void set_contiguous_shape(Tensor& tensor, std::initializer_list<int64_t> shape) {
  CHECK_LE(shape.size(), static_cast<size_t>(Tensor::kMaxRank));
  tensor.rank = static_cast<uint8_t>(shape.size());
  tensor.shape = {};
  tensor.strides = {};
  size_t axis = 0;
  for (int64_t extent : shape) tensor.shape[axis++] = extent;
  int64_t stride = 1;
  while (axis-- > 0) {
    tensor.strides[axis] = stride;
    stride *= tensor.shape[axis];
  }
}
}  // namespace

std::string_view to_string(DeviceType type) { return type == DeviceType::kCpu ? "cpu" : "cuda"; }

Tensor Tensor::contiguous(void* data, DType dtype, std::initializer_list<int64_t> shape, Device device) {
  Tensor tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.device = device;
  set_contiguous_shape(tensor, shape);
  return tensor;
}

int64_t Tensor::numel() const {
  int64_t count = 1;
  for (size_t axis = 0; axis < rank; ++axis) count *= shape[axis];
  return count;
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (size_t axis = rank; axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

Tensor Tensor::narrow(int axis, int64_t begin, int64_t count) const {
  CHECK(begin >= 0 && count >= 0 && begin + count <= dim(axis),
        "[{}, {}) of axis {} of {}",
        begin,
        begin + count,
        axis,
        to_string());
  Tensor view = *this;
  view.data = static_cast<std::byte*>(data) + begin * stride(axis) * dtype_bytes(dtype);
  view.shape[static_cast<size_t>(axis)] = count;
  return view;
}

Tensor Tensor::rows(int64_t begin, int64_t count) const { return narrow(0, begin, count); }

Tensor Tensor::reshaped(std::initializer_list<int64_t> new_shape) const {
  CHECK(is_contiguous(), "reshaping {}", to_string());
  Tensor view = *this;
  set_contiguous_shape(view, new_shape);
  CHECK_EQ(view.numel(), numel());
  return view;
}

std::string Tensor::to_string() const {
  std::string text(llm_dist::to_string(dtype));
  text += "[";
  for (size_t axis = 0; axis < rank; ++axis) text += (axis != 0 ? ", " : "") + std::to_string(shape[axis]);
  return text + "] " + std::string(llm_dist::to_string(device.type)) + ":" + std::to_string(device.index);
}

}  // namespace llm_dist
