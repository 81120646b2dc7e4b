#include "kernels/cuda/cuda_op_state.h"

#include "kernels/cuda/sample_memory.h"
#include "src/base/cache_folder.h"
#include "src/base/format.h"

namespace llm_dist::kernels {

int64_t CudaOpState::workspace_bytes(const OpStateOptions& options) {
  const int64_t sample_words = SampleMemory::of(options.vocab_size, options.row_teams).words_of_entry;
  const int64_t sample_bytes =
      sample_words * options.max_sequences * options.vocab_size * int64_t{sizeof(uint32_t)};
  return kFixedBytes + aligned(attention_plan_bytes(options) + sample_bytes) + code_bytes(options) +
         code_scale_bytes(options);
}

MatmulMemory CudaOpState::matmul_memory(const OpStateOptions& options, std::byte* memory) {
  MatmulMemory made{.workspace = memory,
                    .workspace_bytes = kMatmulBytes,
                    .flags = reinterpret_cast<uint32_t*>(memory + kMatmulBytes + kAttentionBytes)};
  if (!options.f8_weights) return made;
  std::byte* codes = memory + workspace_bytes(options) - code_bytes(options) - code_scale_bytes(options);
  made.codes = reinterpret_cast<uint8_t*>(codes);
  made.codes_bytes = code_bytes(options);
  made.code_rows = code_rows(options);
  made.scales = reinterpret_cast<float*>(codes + code_bytes(options));
  return made;
}

Result<std::unique_ptr<CudaOpState>> CudaOpState::make(device::Backend& backend,
                                                       const OpStateOptions& options) {
  if (options.vocab_size > kMostVocab)
    return failed_precondition(format(
        "a vocabulary of {} tokens: on a GPU {} at most are sampled from", options.vocab_size, kMostVocab));
  ASSIGN_OR_RETURN(HopperDevice device, HopperDevice::ask());
  ASSIGN_OR_RETURN(device::Buffer buffer,
                   backend.allocate(workspace_bytes(options), device::MemoryKind::kDevice));
  const std::string cache = options.autotune ? user_cache_folder() : "";
  ASSIGN_OR_RETURN(std::unique_ptr<Matmul> matmul,
                   Matmul::make(device,
                                matmul_memory(options, buffer.data()),
                                cache.empty() ? cache : cache + "/llm-dist",
                                options.linear));
  const bool fuses_rows = options.persistent_kernels && options.linear == LinearKernels::kFastest;
  return std::unique_ptr<CudaOpState>(
      new CudaOpState(options, std::move(buffer), std::move(matmul), device, fuses_rows));
}

}  // namespace llm_dist::kernels
