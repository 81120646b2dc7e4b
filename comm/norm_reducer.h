// NormReducer: a sum over ranks, the addition of it to the residual stream and the norm of that, in one call.
#pragma once

#include <cstdint>

#include "src/base/tensor.h"
#include "src/device/stream.h"

namespace llm_dist::comm {

// residual ← residual + Σ over the ranks of x; out ← RMSNorm(residual). The bits are those of
// Communicator::all_reduce on x and add_rms_norm (kernels/rms_norm.h) behind it. All contiguous, of one
// dtype, aligned to 16 bytes; residual, weight and epsilon are the same on all ranks.
struct SumAndNorm {
  Tensor x;         // [rows, hidden], this rank's term; lost
  Tensor residual;  // [rows, hidden], in and out
  Tensor weight;    // [hidden]
  float epsilon = 1e-5f;
  Tensor out;  // [rows, hidden]; may be x
};

// A capability that a Communicator may offer. Its calls are in order with the communicator's others, under
// the same rules.
class NormReducer {
 public:
  virtual ~NormReducer() = default;
  // Whether calls of this shape may be made: the same on every rank, always. No for what is faster apart.
  virtual bool takes(int64_t rows, int64_t hidden, DType dtype) const = 0;
  virtual void all_reduce_add_rms_norm(const SumAndNorm& call, device::Stream& stream) = 0;
};

}  // namespace llm_dist::comm
