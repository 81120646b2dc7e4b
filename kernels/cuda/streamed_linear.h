// y = x · Wᵀ (+ bias), gated or not, for up to 64 rows of x (32 where W is in 8-bit floats), at the speed at
// which W is read. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/tensor_map.h"
#include "src/base/status.h"

namespace llm_dist::kernels {

class StreamedLinear {
 public:
  // Goes up when the kernel changes or how it is compared: older choices are forgotten.
  static constexpr int kVersion = 5;

  // For the calling thread's device.
  static Result<StreamedLinear> make();

  bool takes(const MatmulShape& shape) const;
  // Into how many parts the columns may be divided, so that more of the device reads: likely best first.
  std::vector<int> divisions(const MatmulShape& shape) const;
  bool divides(const MatmulShape& shape, int parts) const;
  // `parts`: one of divisions().
  cudaError_t launch(const MatmulShape& shape,
                     const MatmulOperands& operands,
                     int parts,
                     cudaStream_t stream) const;

 private:
  TensorMapEncoder encoder_;
  int processors_ = 0;
  bool supported_ = false;
};

}  // namespace llm_dist::kernels
