#include "kernels/cpu/cpu_op_state.h"

#include <algorithm>

#include "kernels/cpu/linear_onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quant.h"

namespace llm_dist::kernels {
namespace {

constexpr int64_t kLineBytes = 64;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t activation_workspace_bytes(const OpStateOptions& options) {
  return round_up(std::min(options.max_tokens, kTokenBlock) * options.max_features * 4, kLineBytes);
}

}  // namespace

std::string_view to_string(CpuLevel level) {
  switch (level) {
    case CpuLevel::kAvx2: return "AVX2";
    case CpuLevel::kAvxVnni: return "AVX-VNNI";
    case CpuLevel::kAvx512: return "AVX-512 VNNI";
  }
  return "?";
}

bool supports(CpuLevel level) {
  bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  switch (level) {
    case CpuLevel::kAvx2: return avx2;
    case CpuLevel::kAvxVnni: return avx2 && __builtin_cpu_supports("avxvnni");
    case CpuLevel::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
  }
  return false;
}

std::optional<CpuLevel> best_cpu_level() {
  for (CpuLevel level : {CpuLevel::kAvx512, CpuLevel::kAvxVnni, CpuLevel::kAvx2}) {
    if (supports(level)) return level;
  }
  return std::nullopt;
}

Result<std::unique_ptr<CpuOpState>> CpuOpState::make(device::Backend& backend,
                                                     const OpStateOptions& options,
                                                     const CpuTuning& tuning) {
  if (options.threads < 1) return invalid_argument(format("{} threads for CPU ops", options.threads));
  std::optional<CpuLevel> level = tuning.level ? tuning.level : best_cpu_level();
  if (!level || !supports(*level)) {
    return failed_precondition(format("this CPU lacks {}", to_string(level.value_or(CpuLevel::kAvx2))));
  }
  ASSIGN_OR_RETURN(device::Buffer memory,
                   backend.allocate(cpu_workspace_bytes(options), device::MemoryKind::kDevice));
  return std::unique_ptr<CpuOpState>(new CpuOpState(options, tuning, *level, std::move(memory)));
}

CpuOpState::CpuOpState(const OpStateOptions& options,
                       const CpuTuning& tuning,
                       CpuLevel level,
                       device::Buffer memory)
    : options_(options),
      level_(level),
      native_bf16_(level == CpuLevel::kAvx512 && __builtin_cpu_supports("avx512bf16")),
      max_skinny_tokens_(options.batch_invariant ? options.max_tokens : tuning.max_skinny_tokens),
      memory_(std::move(memory)),
      dense_matmul_(std::make_unique<DenseMatmul>(kForkJoin ? options.threads : 1)) {
  std::span<std::byte> all(memory_.data(), static_cast<size_t>(memory_.bytes()));
  auto activation_bytes = static_cast<size_t>(activation_workspace_bytes(options));
  activation_workspace_ = all.first(activation_bytes);
  scratch_ = all.subspan(activation_bytes);
}

CpuOpState::~CpuOpState() = default;

std::span<std::byte> CpuOpState::thread_scratch(int thread) const {
  CHECK(thread >= 0 && thread < threads(), "thread {} of {}", thread, threads());
  auto bytes = static_cast<size_t>(thread_scratch_bytes(options_));
  return scratch_.subspan(static_cast<size_t>(thread) * bytes, bytes);
}

// A packed group of the widest rows (linear), or some floats a logit (sampling) and room for an attention
// tile.
int64_t CpuOpState::thread_scratch_bytes(const OpStateOptions& options) {
  constexpr int64_t kLeastBytes = 64 * 1024;
  int64_t group = kPackedRows * row_bytes(WeightScheme::kQ8_0, round_up(options.max_features, 32));
  int64_t logits = 16 * options.vocab_size;
  return round_up(std::max(group, logits) + kLeastBytes, kLineBytes);
}

int64_t cpu_workspace_bytes(const OpStateOptions& options) {
  return activation_workspace_bytes(options) + options.threads * CpuOpState::thread_scratch_bytes(options);
}

Result<std::unique_ptr<OpState>> make_cpu_state(device::Backend& backend, const OpStateOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<CpuOpState> state, CpuOpState::make(backend, options));
  return std::unique_ptr<OpState>(std::move(state));
}

}  // namespace llm_dist::kernels
