#include "kernels/cpu/cpu_ops.h"

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/ops.h"

namespace llm_dist::kernels {

namespace {
// Every scheme beside every float: kernels convert on the way.
bool takes_weight_cpu(WeightScheme, DType activation) {
  return activation == DType::kF32 || activation == DType::kBF16 || activation == DType::kF16;
}
}  // namespace

const OpTable& cpu_ops() {
  static constexpr OpTable kTable{
      .backend = "cpu",
      .make_state = make_cpu_state,
      .workspace_bytes = cpu_workspace_bytes,
      .takes_weight = takes_weight_cpu,
      .makes_shares = [](const OpState&, const Weight&, bool, DType) { return false; },
      .hands_rows = [](const OpState&, const Weight&, bool, DType, int) { return false; },
      .takes_codes = [](const OpState&, const Weight&, bool, DType, int64_t) { return false; },
      .gives_codes = [](const OpState&, const Weight&, const Weight&, bool, DType, int64_t) { return false; },
      .linear_of_handed = nullptr,
      .linear_silu_and_mul_of_handed = nullptr,
      .linear_terms =
          [](OpState& state, device::Stream& stream, const LinearTermsParams& params) {
            linear_cpu(state, stream, params.product);
            return false;
          },
      .add_rms_norm_of_terms =
          [](OpState&, device::Stream&, const AddRmsNormOfTermsParams&) { return false; },
      .prepare_weight = prepare_weight_cpu,
      .attention_plan = attention_plan_cpu,
      .embedding = embedding_cpu,
      .rms_norm = rms_norm_cpu,
      .add_rms_norm = add_rms_norm_cpu,
      .add = add_cpu,
      .linear = linear_cpu,
      .linear_shares = linear_shares_cpu,
      .linear_silu_and_mul = linear_silu_and_mul_cpu,
      .silu_and_mul = silu_and_mul_cpu,
      .rope_append = rope_append_cpu,
      .attention = attention_cpu,
      .gather_tokens = gather_tokens_cpu,
      .scatter_tokens = scatter_tokens_cpu,
      .gather_rows = gather_rows_cpu,
      .sample = sample_cpu,
      .argmax_shard = argmax_shard_cpu,
      .argmax_merge = argmax_merge_cpu,
  };
  return kTable;
}

}  // namespace llm_dist::kernels
