// Linear: y = x · Wᵀ (+ bias), dense and block-quantized weights.
#pragma once

#include "src/base/tensor.h"
#include "src/base/weight.h"

namespace llm_dist::kernels {

struct LinearParams {
  Tensor x;       // [num_tokens, k] activations, contiguous rows
  Weight weight;  // [n, k], as prepare_weight left it
  Tensor bias;    // [n] in x's dtype, or empty
  Tensor out;     // [num_tokens, n], x's dtype or f32
};

}  // namespace llm_dist::kernels
