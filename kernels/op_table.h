// The table of ops: one function pointer an op, one table a backend. cpu/cpu_ops.h and the CUDA module each
// hand one out; the engine takes it when it is constructed.
#pragma once

#include <memory>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/embedding.h"
#include "kernels/linear.h"
#include "kernels/op_state.h"
#include "kernels/rms_norm.h"
#include "kernels/rope_append.h"
#include "kernels/sample.h"
#include "kernels/token_state.h"
#include "src/device/handed_rows.h"

namespace llm_dist::kernels {

template <typename Params>
using Op = void (*)(OpState&, device::Stream&, const Params&);

struct OpTable {
  const char* backend;

  Result<std::unique_ptr<OpState>> (*make_state)(device::Backend&, const OpStateOptions&);
  int64_t (*workspace_bytes)(const OpStateOptions&);  // what make_state will allocate
  // Whether linear and embedding take this scheme beside activations of that dtype; other weights are
  // converted to the activations' dtype when they are loaded.
  bool (*takes_weight)(WeightScheme, DType activation);
  // Whether linear_shares of many rows by this weight is one kernel, and not as many products as there are
  // shares.
  bool (*makes_shares)(const OpState&, const Weight&, bool has_bias, DType activation);
  // Whether products by this weight hand rows of x among so many ranks, where each has a multiple of
  // kHandedRows: by weights in f8_e4m3 rows that are codes.
  bool (*hands_rows)(const OpState&, const Weight&, bool has_bias, DType activation, int ranks);
  // Whether linear and linear_silu_and_mul by this weight take codes with a scale for each of so many rows
  // (linear.h), and products that hand them do.
  bool (*takes_codes)(const OpState&, const Weight&, bool has_bias, DType activation, int64_t rows);
  // Whether linear_silu_and_mul by `gate_up` of so many rows gives codes (kCodeGroup) that linear, and
  // linear_shares to equal runs of contiguous rows, take by `reader`. x and results are contiguous then, and
  // begin at multiples of 16 bytes.
  bool (*gives_codes)(const OpState&,
                      const Weight& gate_up,
                      const Weight& reader,
                      bool has_bias,  // either
                      DType activation,
                      int64_t rows);
  // linear and linear_silu_and_mul where this rank has only its own rows of x, and hands them to the others;
  // for what hands_rows says yes to.
  void (*linear_of_handed)(OpState&, device::Stream&, const LinearParams&, const device::HandedRows&);
  void (*linear_silu_and_mul_of_handed)(OpState&,
                                        device::Stream&,
                                        const LinearSiluAndMulParams&,
                                        const device::HandedRows&);
  // linear, whose kernel may send out's rows to the ranks: whether it does. Then the next kernel on the
  // stream is the one that takes them.
  bool (*linear_terms)(OpState&, device::Stream&, const LinearTermsParams&);
  // In kernels of other ops, or in one of its own. False: nothing has been done, and the group is to do it.
  bool (*add_rms_norm_of_terms)(OpState&, device::Stream&, const AddRmsNormOfTermsParams&);
  // May rearrange the weight's bytes in place and mark it packed. Called once, after loading, before any use.
  Status (*prepare_weight)(OpState&, device::Stream&, Weight&);
  void (*attention_plan)(OpState&, device::Stream&, const AttentionPlanParams&);

  Op<EmbeddingParams> embedding;
  Op<RmsNormParams> rms_norm;
  Op<AddRmsNormParams> add_rms_norm;
  Op<AddParams> add;
  Op<LinearParams> linear;
  Op<LinearSharesParams> linear_shares;
  Op<LinearSiluAndMulParams> linear_silu_and_mul;
  Op<SiluAndMulParams> silu_and_mul;
  Op<RopeAppendParams> rope_append;
  Op<AttentionParams> attention;
  Op<GatherTokensParams> gather_tokens;
  Op<ScatterTokensParams> scatter_tokens;
  Op<GatherRowsParams> gather_rows;
  Op<SampleParams> sample;
  Op<ArgmaxShardParams> argmax_shard;
  Op<ArgmaxMergeParams> argmax_merge;
};

}  // namespace llm_dist::kernels
