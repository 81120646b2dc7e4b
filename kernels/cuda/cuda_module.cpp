#include "kernels/cuda/cuda_module.h"

#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/overlapped_launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/read_bandwidth.h"
#include "src/device/cuda/cuda_backend.h"

namespace llm_dist::kernels {
namespace {

Result<std::unique_ptr<OpState>> make_state(device::Backend& backend, const OpStateOptions& options) {
  if (options.batch_invariant) {
    return failed_precondition(
        "on GPUs the bits of a result depend on the batch: --deterministic needs --device cpu");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<CudaOpState> state, CudaOpState::make(backend, options));
  return std::unique_ptr<OpState>(std::move(state));
}

Status prepare_weight(OpState&, device::Stream&, Weight&) { return ok_status(); }

void allow_early_starts(bool allowed) { early_starts_allowed = allowed; }

std::optional<StreamedDivision> take_last_division(OpState& state) {
  return as_cuda_state(state).matmul().take_last_division();
}

constexpr OpTable kOps{
    .backend = "cuda",
    .make_state = make_state,
    .workspace_bytes = CudaOpState::workspace_bytes,
    .takes_weight = takes_weight_cuda,
    .makes_shares = makes_shares_cuda,
    .hands_rows = hands_rows_cuda,
    .takes_codes = takes_codes_cuda,
    .gives_codes = gives_codes_cuda,
    .linear_of_handed = linear_of_handed_cuda,
    .linear_silu_and_mul_of_handed = linear_silu_and_mul_of_handed_cuda,
    .linear_terms = linear_terms_cuda,
    .add_rms_norm_of_terms = add_rms_norm_of_terms_cuda,
    .prepare_weight = prepare_weight,
    .attention_plan = attention_plan_cuda,
    .embedding = embedding_cuda,
    .rms_norm = rms_norm_cuda,
    .add_rms_norm = add_rms_norm_cuda,
    .add = add_cuda,
    .linear = linear_cuda,
    .linear_shares = linear_shares_cuda,
    .linear_silu_and_mul = linear_silu_and_mul_cuda,
    .silu_and_mul = silu_and_mul_cuda,
    .rope_append = rope_append_cuda,
    .attention = attention_cuda,
    .gather_tokens = gather_tokens_cuda,
    .scatter_tokens = scatter_tokens_cuda,
    .gather_rows = gather_rows_cuda,
    .sample = sample_cuda,
    .argmax_shard = argmax_shard_cuda,
    .argmax_merge = argmax_merge_cuda,
};

constexpr CudaModule kModule{.version = kCudaModuleVersion,
                             .visible_devices = device::visible_cuda_devices,
                             .make_backend = device::make_cuda_backend,
                             .ops = &kOps,
                             .allow_early_starts = allow_early_starts,
                             .read_bandwidth = read_bandwidth_cuda,
                             .take_last_division = take_last_division};

}  // namespace
}  // namespace llm_dist::kernels

extern "C" __attribute__((visibility("default"))) const llm_dist::kernels::CudaModule*
llm_dist_cuda_module() {
  return &llm_dist::kernels::kModule;
}
