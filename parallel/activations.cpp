#include "parallel/activations.h"

namespace llm_dist::parallel {

Activations codes_in(const Tensor& rows, int64_t groups) {
  CHECK_EQ(dtype_bytes(rows.dtype), 2);
  const int64_t num_tokens = rows.dim(0);
  auto* begin = static_cast<std::byte*>(rows.data);
  const Tensor codes = Tensor::contiguous(begin, DType::kF8E4M3, {num_tokens, rows.dim(1)}, rows.device);
  CHECK(groups * static_cast<int64_t>(sizeof(float)) <= rows.dim(1),
        "{} scales for {}",
        groups,
        rows.to_string());
  return {codes, Tensor::contiguous(begin + codes.bytes(), DType::kF32, {groups, num_tokens}, rows.device)};
}

}  // namespace llm_dist::parallel
