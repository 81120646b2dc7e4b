// WeightMap: what a rank's layers want from a checkpoint. Layers fill it when they are constructed; the
// loader reads exactly these slices, and `plan` adds up their bytes from headers alone.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallel/activations.h"
#include "src/base/tensor.h"
#include "src/base/weight.h"

namespace llm_dist::parallel {

// Rows [row_begin, +row_count) × columns [col_begin, +col_count) of a checkpoint tensor, placed from
// `dest_row` on.
struct WeightPiece {
  std::string tensor;
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t col_begin = 0;
  int64_t col_count = 0;
  int64_t dest_row = 0;
};

// A matrix, rows × cols on this rank. Rows no piece covers are zero (padding).
struct MatrixSlot {
  Weight* target = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<WeightPiece> pieces;
  bool is_linear = false;  // of a layer between embedding and head, which may be quantized as it is loaded
  // Of a row-parallel layer, whose products are terms of a sum over the tensor group.
  bool makes_terms = false;
  // Of a column-parallel layer, which reads whole rows: where it is told what the products of all ranks take
  // in the place of those.
  NormedAs* normed_as = nullptr;
  bool has_bias = false;  // of a layer of these two kinds, on this rank
};

// A vector (norm weight, bias) in the activations' dtype.
struct VectorSlot {
  Tensor* target = nullptr;
  int64_t size = 0;
  std::vector<WeightPiece> pieces;  // of tensors [n, 1]
};

// Computed, not loaded: f32 [rows, cols].
struct TableSlot {
  Tensor* target = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  std::function<void(float* values)> fill;
};

struct WeightMap {
  std::vector<MatrixSlot> matrices;
  std::vector<VectorSlot> vectors;
  std::vector<TableSlot> tables;
};

}  // namespace llm_dist::parallel
