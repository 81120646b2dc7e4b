// Attention of prompts on GPUs of compute capability 9.0, with the products of warpgroups. Its plan's items
// have kHopperPromptRows rows.
#pragma once

#include <cuda_runtime.h>

#include "kernels/attention.h"
#include "kernels/cuda/hopper_device.h"
#include "kernels/op_state.h"

namespace llm_dist::kernels {

struct PagedAttentionArgs;

class HopperPrompts {
 public:
  HopperPrompts(const HopperDevice& device, AttentionKernels which)
      : encoder_(device.encoder),
        processors_(device.supported && which != AttentionKernels::kPortable ? device.processors : 0) {}

  // Of the device; 0 where it cannot run or is not wanted.
  int processors() const { return processors_; }
  // The plan's prompt items. T: bf16 or f16; Kv: T or f8_e4m3; kHeadDim: 64 or 128.
  template <typename T, typename Kv, int kHeadDim>
  cudaError_t launch(const PagedAttentionArgs& args,
                     const AttentionParams& params,
                     cudaStream_t stream) const;

 private:
  TensorMapEncoder encoder_;
  int processors_;
};

}  // namespace llm_dist::kernels
