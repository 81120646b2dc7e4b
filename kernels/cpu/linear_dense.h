// Linear layers over f32, bf16 and f16 weights, run on the calling thread and its team.
#pragma once

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/linear.h"

namespace llm_dist::kernels {

// internal_error when oneDNN fails.
Status run_dense_linear(CpuOpState& state, const LinearParams& params);

}  // namespace llm_dist::kernels
