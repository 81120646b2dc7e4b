#include "src/checkpoint/f8_scales.h"

#include <algorithm>
#include <cmath>

#include "src/checkpoint/quantize.h"

namespace llm_dist::checkpoint {
namespace {

int64_t blocks(int64_t size) { return (size + F8Scales::kBlock - 1) / F8Scales::kBlock; }

bool is_whole(const TensorInfo& scales) { return scales.rows == 1 && scales.cols == 1; }
bool is_by_row(const TensorInfo& tensor, const TensorInfo& scales) {
  return scales.rows == tensor.rows && scales.cols == 1;
}
bool is_by_block(const TensorInfo& tensor, const TensorInfo& scales) {
  return scales.rows == blocks(tensor.rows) && scales.cols == blocks(tensor.cols);
}

}  // namespace

bool f8_scales_by_row(const TensorInfo& tensor, const TensorInfo& scales) {
  return check_f8_scales(tensor, scales).ok() && scales.cols == 1;
}

Status check_f8_scales(const TensorInfo& tensor, const TensorInfo& scales) {
  const bool floats = !is_quantized(scales.scheme) && scales.scheme != WeightScheme::kF8E4M3;
  if (floats && (is_whole(scales) || is_by_row(tensor, scales) || is_by_block(tensor, scales)))
    return ok_status();
  return data_loss(
      format("tensor {} is [{}, {}], its scales {} are {} [{}, {}]: neither one, nor one a row, nor one for "
             "each block of {} × {}",
             tensor.name,
             tensor.rows,
             tensor.cols,
             scales.name,
             scales.scheme,
             scales.rows,
             scales.cols,
             F8Scales::kBlock,
             F8Scales::kBlock));
}

Result<F8Scales> F8Scales::read(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const TensorInfo* info = checkpoint.scales_of(tensor);
  if (info == nullptr) return not_found(format("{}: no scales of {}", checkpoint.path(), tensor.name));
  RETURN_IF_ERROR(check_f8_scales(tensor, *info));
  std::vector<std::byte> stored(static_cast<size_t>(info->bytes()));
  const SliceRequest request = whole(*info, stored.data());
  RETURN_IF_ERROR(
      checkpoint.read(std::span(&request, 1), {.threads = 1, .progress = {}, .stop = {}}).status());
  F8Scales scales;
  scales.values_.resize(static_cast<size_t>(info->rows * info->cols));
  dequantize_row(info->scheme, stored.data(), scales.values_.data(), info->rows * info->cols);
  for (float value : scales.values_)
    if (!std::isfinite(value)) return data_loss(format("tensor {} holds {}", info->name, value));
  scales.cols_ = info->cols;
  if (is_whole(*info)) {
    scales.rows_a_scale_ = std::max<int64_t>(1, tensor.rows);
  } else if (!is_by_row(tensor, *info)) {
    scales.rows_a_scale_ = kBlock;
  }
  return scales;
}

void F8Scales::apply(int64_t row, int64_t col_begin, float* values, int64_t count) const {
  const float* scales = values_.data() + row / rows_a_scale_ * cols_;
  for (int64_t i = 0; i < count; ++i) values[i] *= scales[by_row() ? 0 : (col_begin + i) / kBlock];
}

}  // namespace llm_dist::checkpoint
