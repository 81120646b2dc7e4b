#include "kernels/cuda/cuda_op_state.h"

#include "src/base/cache_folder.h"

namespace llm_dist::kernels {

int64_t CudaOpState::workspace_bytes(const OpStateOptions& options) {
  return kMatmulBytes + kAttentionBytes + attention_plan_bytes(options) +
         2 * options.max_sequences * options.vocab_size * int64_t{sizeof(float)};
}

Result<std::unique_ptr<CudaOpState>> CudaOpState::make(device::Backend& backend,
                                                       const OpStateOptions& options) {
  ASSIGN_OR_RETURN(device::Buffer buffer,
                   backend.allocate(workspace_bytes(options), device::MemoryKind::kDevice));
  const std::string cache = user_cache_folder();
  ASSIGN_OR_RETURN(
      std::unique_ptr<Matmul> matmul,
      Matmul::make(buffer.data(), kMatmulBytes, cache.empty() ? cache : cache + "/llm-dist", options.linear));
  return std::unique_ptr<CudaOpState>(new CudaOpState(options, std::move(buffer), std::move(matmul)));
}

}  // namespace llm_dist::kernels
