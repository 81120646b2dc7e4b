// SiLU(gate) · up, over the output of the merged gate-up projection (Shazeer 2020, SwiGLU).
#pragma once

#include "src/base/tensor.h"

namespace llm_dist::kernels {

// out[t, i] = silu(gate_up[t, i]) · gate_up[t, n + i]
struct SiluAndMulParams {
  Tensor gate_up;  // [num_tokens, 2n]: gate columns, then up columns
  Tensor out;      // [num_tokens, n]
};

}  // namespace llm_dist::kernels
