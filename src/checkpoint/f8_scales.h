// F8Scales: what the codes of an f8_e4m3 tensor of a checkpoint are multiplied by. A Hugging Face checkpoint
// keeps them in a tensor beside it, in one of three forms: one for the whole, one a row, or one for each
// block of 128 × 128.
#pragma once

#include <cstdint>
#include <vector>

#include "src/checkpoint/checkpoint.h"

namespace llm_dist::checkpoint {

class F8Scales {
 public:
  static constexpr int64_t kBlock = 128;

  // Those of `tensor`, all of them. kDataLoss naming the tensor where one is not finite.
  static Result<F8Scales> read(const Checkpoint& checkpoint, const TensorInfo& tensor);

  // All of a row's values have the same one.
  bool by_row() const { return cols_ == 1; }
  float of_row(int64_t row) const { return values_[static_cast<size_t>(row / rows_a_scale_)]; }
  // values[i] *= the scale of (row, col_begin + i)
  void apply(int64_t row, int64_t col_begin, float* values, int64_t count) const;

 private:
  int64_t rows_a_scale_ = 1;
  int64_t cols_ = 1;  // scales of a row
  std::vector<float> values_;
};

// Whether all of a row's values have the same scale.
bool f8_scales_by_row(const TensorInfo& tensor, const TensorInfo& scales);
// ok where `scales` can be those of `tensor`; kDataLoss that names both otherwise.
Status check_f8_scales(const TensorInfo& tensor, const TensorInfo& scales);

}  // namespace llm_dist::checkpoint
