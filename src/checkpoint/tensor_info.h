// TensorInfo: where one tensor of a checkpoint stands and how it is stored.
#pragma once

#include <cstdint>
#include <string>

#include "src/base/weight.h"

namespace llm_dist::checkpoint {

struct TensorInfo {
  std::string name;  // the Hugging Face name, also for GGUF: "model.layers.0.self_attn.q_proj.weight"
  WeightScheme scheme = WeightScheme::kF32;
  int64_t rows =
      0;  // output features. A vector of n values is [n, 1], so a bias is sliced like its weight's rows
  int64_t cols = 0;    // input features; a multiple of the scheme's block
  int32_t file = 0;    // index into Checkpoint::files()
  int64_t offset = 0;  // of the first byte in that file
  // 0: rows stand in Hugging Face order. Otherwise the file permuted the rows of each head of this size for
  // interleaved rotary embedding (GGUF's llama q and k); reading puts them back.
  int64_t interleaved_head_dim = 0;

  int64_t row_bytes() const { return llm_dist::row_bytes(scheme, cols); }
  int64_t bytes() const { return rows * row_bytes(); }
};

}  // namespace llm_dist::checkpoint
