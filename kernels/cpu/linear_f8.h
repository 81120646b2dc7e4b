// Linear layers over f8_e4m3 weights, run on the calling thread and its team: rows are widened to floats and
// multiplied as floats are. A reference for other devices rather than a fast path.
#pragma once

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/linear.h"

namespace llm_dist::kernels {

void run_f8_linear(CpuOpState& state, const LinearParams& params);

}  // namespace llm_dist::kernels
