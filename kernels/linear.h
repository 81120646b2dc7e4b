// Linear: y = x · Wᵀ (+ bias), dense and block-quantized weights, alone and with a gated activation behind
// it.
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

// out = silu(gate) · up with [gate, up] = x · Wᵀ (+ bias): the merged gate-up projection and its activation
// (Shazeer 2020, SwiGLU).
struct LinearSiluAndMulParams {
  Tensor x;        // [num_tokens, k], contiguous rows
  Weight weight;   // [2n, k]: the gate's rows, then up's
  Tensor bias;     // [2n] in x's dtype, or empty
  Tensor gate_up;  // [num_tokens, 2n]: memory for the products; what is left there is unspecified
  Tensor out;      // [num_tokens, n], x's dtype
};

}  // namespace llm_dist::kernels
