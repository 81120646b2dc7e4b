// CpuOpState: the threads, workspaces and cached oneDNN primitives of one rank's CPU ops.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "kernels/op_state.h"

namespace llm_dist::kernels {

class DenseMatmul;

// Instruction sets with kernels of their own, weakest first. AVX2 (with FMA and F16C) is the least that runs.
enum class CpuLevel : uint8_t { kAvx2, kAvxVnni, kAvx512 };  // kAvx512: F, BW, DQ, VL and VNNI

std::string_view to_string(CpuLevel level);
bool supports(CpuLevel level);             // this CPU and its operating system
std::optional<CpuLevel> best_cpu_level();  // none: no AVX2

// Linear layers convert their activations this many tokens at a time, into a workspace that stays in cache.
inline constexpr int64_t kTokenBlock = 256;

struct CpuTuning {
  std::optional<CpuLevel> level;  // default: the best that this CPU runs
  // Dense layers with at most this many tokens take our own kernels, whose rows do not depend on the batch;
  // wider ones take oneDNN. Block-quantized layers never depend on the batch.
  int64_t max_skinny_tokens = 8;
};

class CpuOpState : public OpState {
 public:
  // failed_precondition without AVX2 or with a level this CPU lacks; resource_exhausted without memory.
  static Result<std::unique_ptr<CpuOpState>> make(device::Backend& backend,
                                                  const OpStateOptions& options,
                                                  const CpuTuning& tuning = {});
  ~CpuOpState() override;

  const OpStateOptions& options() const { return options_; }
  int threads() const { return options_.threads; }
  CpuLevel level() const { return level_; }
  bool has_native_bf16() const { return native_bf16_; }
  int64_t max_skinny_tokens() const { return max_skinny_tokens_; }

  // One op at a time uses these: ops of a state run in order on one stream.
  // Activations converted for a linear layer: min(max_tokens, kTokenBlock) · max_features floats.
  std::span<std::byte> activation_workspace() const { return activation_workspace_; }
  // Of one thread in [0, threads): thread_scratch_bytes(options), 64-byte aligned, contents undefined.
  std::span<std::byte> thread_scratch(int thread) const;
  // Every thread's scratch as one piece, for ops that split it another way.
  std::span<std::byte> scratch() const { return scratch_; }
  static int64_t thread_scratch_bytes(const OpStateOptions& options);

  DenseMatmul& dense_matmul() const { return *dense_matmul_; }

 private:
  CpuOpState(const OpStateOptions& options, const CpuTuning& tuning, CpuLevel level, device::Buffer memory);

  OpStateOptions options_;
  CpuLevel level_;
  bool native_bf16_;
  int64_t max_skinny_tokens_;
  device::Buffer memory_;
  std::span<std::byte> activation_workspace_;
  std::span<std::byte> scratch_;
  std::unique_ptr<DenseMatmul> dense_matmul_;
};

inline CpuOpState& as_cpu(OpState& state) { return static_cast<CpuOpState&>(state); }

// The op table's make_state and workspace_bytes.
Result<std::unique_ptr<OpState>> make_cpu_state(device::Backend& backend, const OpStateOptions& options);
int64_t cpu_workspace_bytes(const OpStateOptions& options);

}  // namespace llm_dist::kernels
