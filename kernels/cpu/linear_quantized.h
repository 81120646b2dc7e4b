// Linear layers over block-quantized weights, run on the calling thread and its team.
#pragma once

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/linear.h"

namespace llm_dist::kernels {

void run_quantized_linear(CpuOpState& state, const LinearParams& params);

// Packs a plain weight's rows in place (quant.h); scratch is one group of rows a thread.
void pack_weight(CpuOpState& state, const Weight& weight);

}  // namespace llm_dist::kernels
