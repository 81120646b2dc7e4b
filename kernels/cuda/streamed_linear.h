// y = x · Wᵀ (+ bias), gated or not, for up to 256 rows of x, at the speed at which W is read. Needs compute
// capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <optional>
#include <vector>

#include "kernels/cuda/even_linear.h"
#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/streamed_division.h"
#include "kernels/op_state.h"

namespace llm_dist::kernels {

class StreamedLinear {
 public:
  // Goes up when the kernel changes or how it is compared: older choices are forgotten.
  static constexpr int kVersion = 18;

  explicit StreamedLinear(const HopperDevice& device);

  // What `kernels` wants wherever it can be had, if anything.
  static std::optional<StreamedDivision> wanted_division(LinearKernels kernels);
  bool takes(const MatmulShape& shape) const;
  // How the work may be divided, so that all of the device reads; likely best first.
  std::vector<StreamedDivision> divisions(const MatmulShape& shape) const;
  bool divides(const MatmulShape& shape, const StreamedDivision& division) const;
  // `memory`: of the stream.
  cudaError_t launch(const MatmulShape& shape,
                     const MatmulOperands& operands,
                     const StreamedDivision& division,
                     const StreamMemory& memory,
                     cudaStream_t stream) const;

 private:
  // Of a strip, wide or not, or of those that share x: as many as run at the same time, with columns enough
  // for each; 0 where not even whole ones do. Of two blocks a processor, where x is in parts, an estimate:
  // twice as many clusters as of one.
  int most_parts(const MatmulShape& shape, const StreamedDivision& strips) const;

  // Of the blocks that share x: as many as run at the same time.
  int clusters_of(const StreamedDivision& division) const {
    return division.sharing == 1 ? device_.processors : clusters_[static_cast<size_t>(division.sharing - 1)];
  }

  HopperDevice device_;
  // How many clusters of 1, 2, .. blocks run at the same time.
  std::array<int, StreamedDivision::kMostParts> clusters_{};
};

}  // namespace llm_dist::kernels
