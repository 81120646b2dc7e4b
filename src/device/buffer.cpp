#include "src/device/backend.h"

namespace llm_dist::device {

Tensor Buffer::view(DType dtype, std::initializer_list<int64_t> shape, int64_t byte_offset) const {
  CHECK(backend_ != nullptr, "a view of an empty buffer");
  Tensor tensor = Tensor::contiguous(data() + byte_offset, dtype, shape, backend_->device());
  CHECK(byte_offset >= 0 && byte_offset + tensor.bytes() <= bytes_,
        "{} at byte {} of a buffer of {} bytes",
        tensor.to_string(),
        byte_offset,
        bytes_);
  return tensor;
}

void Buffer::reset() {
  if (data_ != nullptr) backend_->release(data_, bytes_, kind_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace llm_dist::device
