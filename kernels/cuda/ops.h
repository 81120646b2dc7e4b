// The CUDA ops, one a file; op_table.h describes them.
#pragma once

#include "kernels/op_table.h"

namespace llm_dist::kernels {

void embedding_cuda(OpState&, device::Stream&, const EmbeddingParams&);
void rms_norm_cuda(OpState&, device::Stream&, const RmsNormParams&);
void add_rms_norm_cuda(OpState&, device::Stream&, const AddRmsNormParams&);
bool add_rms_norm_of_terms_cuda(OpState&, device::Stream&, const AddRmsNormOfTermsParams&);
void add_cuda(OpState&, device::Stream&, const AddParams&);
void linear_cuda(OpState&, device::Stream&, const LinearParams&);
bool takes_codes_cuda(const OpState&, const Weight&, bool has_bias, DType activation, int64_t rows);
bool gives_codes_cuda(const OpState&,
                      const Weight& gate_up,
                      const Weight& reader,
                      bool has_bias,
                      DType activation,
                      int64_t rows);
bool hands_rows_cuda(const OpState&, const Weight&, bool has_bias, DType activation, int ranks);
bool makes_shares_cuda(const OpState&, const Weight&, bool has_bias, DType activation);
bool linear_terms_cuda(OpState&, device::Stream&, const LinearTermsParams&);
void linear_shares_cuda(OpState&, device::Stream&, const LinearSharesParams&);
void linear_silu_and_mul_cuda(OpState&, device::Stream&, const LinearSiluAndMulParams&);
void linear_of_handed_cuda(OpState&, device::Stream&, const LinearParams&, const device::HandedRows&);
void linear_silu_and_mul_of_handed_cuda(OpState&,
                                        device::Stream&,
                                        const LinearSiluAndMulParams&,
                                        const device::HandedRows&);
void silu_and_mul_cuda(OpState&, device::Stream&, const SiluAndMulParams&);
void rope_append_cuda(OpState&, device::Stream&, const RopeAppendParams&);
void attention_cuda(OpState&, device::Stream&, const AttentionParams&);
void attention_plan_cuda(OpState&, device::Stream&, const AttentionPlanParams&);
void gather_tokens_cuda(OpState&, device::Stream&, const GatherTokensParams&);
void scatter_tokens_cuda(OpState&, device::Stream&, const ScatterTokensParams&);
void gather_rows_cuda(OpState&, device::Stream&, const GatherRowsParams&);
void sample_cuda(OpState&, device::Stream&, const SampleParams&);
void argmax_shard_cuda(OpState&, device::Stream&, const ArgmaxShardParams&);
void argmax_merge_cuda(OpState&, device::Stream&, const ArgmaxMergeParams&);

}  // namespace llm_dist::kernels
