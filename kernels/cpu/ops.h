// The CPU's ops other than linear, each in a file of its own name; kernels/*.h say what they compute. All
// check shapes when issued and do their work on the stream's thread; activations are f32, bf16 or f16.
#pragma once

#include "kernels/op_table.h"
#include "src/device/stream.h"

namespace llm_dist::kernels {

void embedding_cpu(OpState& state, device::Stream& stream, const EmbeddingParams& params);
void rms_norm_cpu(OpState& state, device::Stream& stream, const RmsNormParams& params);
void add_rms_norm_cpu(OpState& state, device::Stream& stream, const AddRmsNormParams& params);
void add_cpu(OpState& state, device::Stream& stream, const AddParams& params);
void silu_and_mul_cpu(OpState& state, device::Stream& stream, const SiluAndMulParams& params);
void rope_append_cpu(OpState& state, device::Stream& stream, const RopeAppendParams& params);

// A query's result has the same bits in any batch and chunk.
void attention_plan_cpu(OpState& state, device::Stream& stream, const AttentionPlanParams& params);
void attention_cpu(OpState& state, device::Stream& stream, const AttentionParams& params);

void gather_tokens_cpu(OpState& state, device::Stream& stream, const GatherTokensParams& params);
void scatter_tokens_cpu(OpState& state, device::Stream& stream, const ScatterTokensParams& params);
void gather_rows_cpu(OpState& state, device::Stream& stream, const GatherRowsParams& params);

// Uses sample_scratch_bytes(vocab_size) of each thread's scratch. NaN logits count as −inf and +inf as the
// largest float; where every allowed token is at −inf the smallest allowed id is drawn, 0 where none is.
void sample_cpu(OpState& state, device::Stream& stream, const SampleParams& params);
void argmax_shard_cpu(OpState& state, device::Stream& stream, const ArgmaxShardParams& params);
void argmax_merge_cpu(OpState& state, device::Stream& stream, const ArgmaxMergeParams& params);

}  // namespace llm_dist::kernels
