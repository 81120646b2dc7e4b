// Linear layers on CPU. Block-quantized weights are multiplied as they are: activations are quantized to int8
// a block of 32 (as llama.cpp does), dot products run in int8 and accumulate in f32. Dense weights with few
// tokens stream through our own kernels, with many through oneDNN.
#pragma once

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/linear.h"
#include "src/device/stream.h"

namespace llm_dist::kernels {

// x: f32, bf16 or f16 with rows of unit element stride; out: x's dtype or f32, likewise. Bias in x's dtype.
void linear_cpu(OpState& state, device::Stream& stream, const LinearParams& params);
void linear_shares_cpu(OpState& state, device::Stream& stream, const LinearSharesParams& params);
void linear_silu_and_mul_cpu(OpState& state, device::Stream& stream, const LinearSiluAndMulParams& params);

// Interleaves the rows of a block-quantized weight in place (quant.h); dense weights stay as they are. The
// work is issued to `stream`; `weight` says packed at once. invalid_argument when k is no multiple of the
// scheme's block or exceeds the state's max_features.
Status prepare_weight_cpu(OpState& state, device::Stream& stream, Weight& weight);

}  // namespace llm_dist::kernels
