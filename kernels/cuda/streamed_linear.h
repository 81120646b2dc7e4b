// y = x · Wᵀ (+ bias), gated or not, for up to 128 rows of x (32 where W is in 8-bit floats), at the speed at
// which W is read. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "kernels/cuda/even_linear.h"
#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/op_state.h"

namespace llm_dist::kernels {

class StreamedLinear {
 public:
  // Goes up when the kernel changes or how it is compared: older choices are forgotten.
  static constexpr int kVersion = 12;

  // Up to here, over all ranks that get them, it sends rows itself (MatmulOperands::terms): two columns at a
  // time, where a kernel behind it sends whole rows.
  static constexpr int64_t kMostSentRows = 32;

  // In the place of a number of parts: all columns of all strips cut into ranges of the same length
  // (even_linear.cu); kEvenWide: of strips of 128 rows of W, so that x comes from L2 half as often, the only
  // ones for more than 64 rows of x; kEvenPairs: for so many rows alone, with two blocks that bring each
  // other x. Beside the latter two even_parts(n): n ranges of each strip, whose steps they divide.
  static constexpr int kEven = 1 << 16;
  static constexpr int kEvenWide = kEven | 1 << 17;
  static constexpr int kEvenPairs = kEvenWide | 1 << 18;
  static constexpr int even_parts(int parts) { return parts << 20; }
  // The one of these that is wanted wherever it can be had, or 0.
  static int wanted_division(LinearKernels kernels);

  explicit StreamedLinear(const HopperDevice& device) : device_(device) {}

  bool takes(const MatmulShape& shape) const;
  // Into how many parts the columns may be divided, so that more of the device reads, likely best first; then
  // kEven and, where x is not little beside W, kEvenWide. Of more than 64 rows kEvenWide and kEvenPairs,
  // alone and with parts.
  std::vector<int> divisions(const MatmulShape& shape) const;
  bool divides(const MatmulShape& shape, int parts) const;
  // `parts`: one of divisions(). `memory`: of the stream.
  cudaError_t launch(const MatmulShape& shape,
                     const MatmulOperands& operands,
                     int parts,
                     const StreamMemory& memory,
                     cudaStream_t stream) const;

 private:
  HopperDevice device_;
};

}  // namespace llm_dist::kernels
