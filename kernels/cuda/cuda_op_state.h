// What the CUDA ops of one rank keep: workspaces, allocated once, and cuBLASLt's handle with its plans.
#pragma once

#include <algorithm>
#include <memory>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/fused_row.h"
#include "kernels/cuda/hopper_prompts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/op_state.h"

namespace llm_dist::kernels {

class CudaOpState : public OpState {
 public:
  // What cuBLASLt wants for its largest tiles on Hopper.
  static constexpr int64_t kMatmulBytes = int64_t{32} << 20;
  static_assert(kMatmulBytes >= StreamMemory::kSumBytes);
  // Partial results of attention that was split along the context.
  static constexpr int64_t kAttentionBytes = int64_t{16} << 20;

  static Result<std::unique_ptr<CudaOpState>> make(device::Backend& backend, const OpStateOptions& options);
  static int64_t workspace_bytes(const OpStateOptions& options);

  void start_tuning() override {
    if (options_.autotune) matmul_->start_tuning();
  }
  void end_tuning() override {
    if (options_.autotune) matmul_->end_tuning();
  }
  const OpStateOptions& options() const { return options_; }
  Matmul& matmul() const { return *matmul_; }
  FusedRow& fused_row() { return fused_row_; }
  const HopperPrompts& hopper_prompts() const { return hopper_prompts_; }
  float* attention_scratch() const { return reinterpret_cast<float*>(buffer_.data() + kMatmulBytes); }
  std::byte* plan_memory() const { return buffer_.data() + kFixedBytes; }
  // Of SampleMemory, for max_sequences rows.
  uint32_t* sample_memory() const {
    return reinterpret_cast<uint32_t*>(plan_memory() + attention_plan_bytes(options_));
  }
  // Of the step being issued.
  const AttentionPlan& attention_plan() const { return attention_plan_; }
  void set_attention_plan(const AttentionPlan& plan) { attention_plan_ = plan; }

 private:
  CudaOpState(const OpStateOptions& options,
              device::Buffer buffer,
              std::unique_ptr<Matmul> matmul,
              const HopperDevice& device,
              bool fuses_rows)
      : options_(options),
        buffer_(std::move(buffer)),
        matmul_(std::move(matmul)),
        fused_row_(buffer_.data() + kFusedRowAt, device, fuses_rows),
        hopper_prompts_(device, options.attention) {}

  static constexpr int64_t kAlignment = 256;
  static constexpr int64_t kFusedRowAt = kMatmulBytes + kAttentionBytes + StreamMemory::kFlagBytes;
  static constexpr int64_t kFixedBytes = kFusedRowAt + FusedRow::kMemoryBytes;
  static_assert(kFixedBytes % kAlignment == 0);
  static int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
  // Of activations in f8_e4m3.
  static int64_t code_rows(const OpStateOptions& options) {
    return std::max(options.max_tokens, StreamMemory::kMostCodeRows);
  }
  static int64_t code_bytes(const OpStateOptions& options) {
    return options.f8_weights ? aligned(code_rows(options) * options.max_features) : 0;
  }
  static int64_t code_scale_bytes(const OpStateOptions& options) {
    return options.f8_weights ? aligned(code_rows(options) * int64_t{sizeof(float)}) : 0;
  }
  static MatmulMemory matmul_memory(const OpStateOptions& options, std::byte* memory);

  OpStateOptions options_;
  device::Buffer buffer_;
  std::unique_ptr<Matmul> matmul_;
  FusedRow fused_row_;
  HopperPrompts hopper_prompts_;
  AttentionPlan attention_plan_;
};

inline CudaOpState& as_cuda_state(OpState& state) { return static_cast<CudaOpState&>(state); }

}  // namespace llm_dist::kernels
