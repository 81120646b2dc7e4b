// NormReducer: a sum over ranks, the addition of it to the residual stream and the norm of that, in one call.
#pragma once

#include <cstdint>

#include "src/base/tensor.h"
#include "src/device/stream.h"

namespace llm_dist::comm {

// residual ← residual + Σ over the ranks of x; out ← RMSNorm(residual). All contiguous, of one dtype, aligned
// to 16 bytes; weight and epsilon are the same on all ranks.
struct SumAndNorm {
  Tensor x;  // [rows, hidden], this rank's term; lost
  // In and out. Held by all ranks: [rows, hidden], the same on each. Shared: rank r of n has rows r · rows/n
  // to (r + 1) · rows/n, [rows/n, hidden].
  Tensor residual;
  Tensor weight;  // [hidden]
  float epsilon = 1e-5f;
  Tensor out;  // [rows, hidden], all of them on every rank; may be x where ranks hold the residual
};

// A capability that a Communicator may offer. Its calls are in order with the communicator's others, under
// the same rules.
class NormReducer {
 public:
  virtual ~NormReducer() = default;
  // Whether calls of this shape may be made: the same on every rank, always. No for what is faster apart.
  virtual bool takes(int64_t rows, int64_t hidden, DType dtype) const = 0;
  // Every rank holds the residual. The bits are those of Communicator::all_reduce on x and add_rms_norm
  // (kernels/rms_norm.h) behind it.
  virtual void all_reduce_add_rms_norm(const SumAndNorm& call, device::Stream& stream) = 0;

  // The same where ranks share the residual (sequence parallelism): a reduce-scatter, the addition and the
  // norm of a share of the rows, an all-gather. `rows` of all ranks together.
  virtual bool takes_shares(int64_t rows, int64_t hidden, DType dtype) const = 0;
  // Where x and out of such a call have to be, null unless it is taken. An out stays until the group's next
  // call.
  virtual Tensor shared_term(int64_t rows, int64_t hidden, DType dtype) const = 0;
  virtual Tensor shared_out(int64_t rows, int64_t hidden, DType dtype) const = 0;
  virtual void add_rms_norm_of_shares(const SumAndNorm& call, device::Stream& stream) = 0;
};

}  // namespace llm_dist::comm
