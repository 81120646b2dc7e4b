// Products of prompts by wgmma: y = silu(x · Gᵀ) · (x · Uᵀ), the gate applied where its sums are, and
// y = x · Wᵀ, whose rows may go to several places. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <span>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"

namespace llm_dist::kernels {

// Weights in bf16 or f16 or, with a scale for each row, in f8_e4m3; no bias, 256 rows of x at least. x is in
// the weights' type: beside f8_e4m3 operands.x are its rows' codes, contiguous, and operands.x_scales their
// scales (quantize_rows.h, one part). Where the shape says so, codes between a gated product and the one that
// reads it are in groups (MatmulShape::grouped_codes).
class PromptLinear {
 public:
  static constexpr int kMostShares = 8;
  static constexpr int kClusterRows = 512;  // that fill the larger clusters

  // `device`: the calling thread's.
  explicit PromptLinear(const HopperDevice& device);

  bool takes_gated(const MatmulShape& shape) const;
  // Does not touch operands.product.
  cudaError_t launch_gated(const MatmulShape& shape,
                           const MatmulOperands& operands,
                           cudaStream_t stream) const;

  bool takes_plain(const MatmulShape& shape) const;
  cudaError_t launch_plain(const MatmulShape& shape,
                           const MatmulOperands& operands,
                           cudaStream_t stream) const;

  // Gated or plain, with rows of x in so many shares that ranks hand each other (MatmulOperands::handed).
  bool takes_handed(const MatmulShape& shape, int shares) const;

  // A plain y in so many runs of rows, of one length.
  bool takes_shares(const MatmulShape& shape, int shares) const;
  // The i-th run goes to shares[i], where its rows are shape.y_stride apart: this device's memory or what it
  // can reach of another's. Run `first` is multiplied first, the others follow it round. operands.y is not
  // used.
  cudaError_t launch_shares(const MatmulShape& shape,
                            const MatmulOperands& operands,
                            std::span<void* const> shares,
                            int first,
                            cudaStream_t stream) const;

 private:
  HopperDevice device_;
  int eights_;  // clusters of eight blocks that find room at the same time
};

}  // namespace llm_dist::kernels
