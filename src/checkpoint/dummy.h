// Dummy weights: values made up from (tensor name, row, column), so that every layout of ranks sees the same
// logical matrix without a file.
#pragma once

#include <vector>

#include "src/base/status.h"
#include "src/checkpoint/model_config.h"
#include "src/checkpoint/slice.h"
#include "src/checkpoint/tensor_info.h"

namespace llm_dist::checkpoint {

// The tensors of a Llama-family decoder under Hugging Face names, in file order: `linear` is the scheme of
// matrices, vectors are dense in the config's dtype. kUnimplemented, naming the architecture, for another
// family.
Result<std::vector<TensorInfo>> expected_tensors(const ModelConfig& config, WeightScheme linear);

// Norm weights are 1, biases and matrices have mean 0 and standard deviation 0.02 (a sum of four uniform
// values: near enough to normal, bounded by 3.5 deviations, and fast). Quantized schemes hold the same
// values, rounded.
void fill_dummy(const SliceChunk& chunk);

}  // namespace llm_dist::checkpoint
