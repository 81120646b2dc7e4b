// NormReducer: a sum over ranks, the addition of it to the residual stream and the norm of that, in one call.
#pragma once

#include <cstdint>

#include "src/base/tensor.h"
#include "src/device/handed_rows.h"
#include "src/device/peer_terms.h"
#include "src/device/stream.h"

namespace llm_dist::comm {

// residual ← residual + Σ over the ranks of x; out ← RMSNorm(residual). All contiguous, of one dtype, aligned
// to 16 bytes; weight and epsilon are the same on all ranks.
struct SumAndNorm {
  Tensor x;         // [rows, hidden], this rank's term; lost
  Tensor residual;  // [rows, hidden], the same on every rank; in and out
  Tensor weight;    // [hidden]
  float epsilon = 1e-5f;
  Tensor out;  // [rows, hidden]; may be x
  // The kernel in front has sent this rank's term to where NormReducer::terms() says: nothing is read at x.
  bool sent = false;
};

// The same where ranks share the residual stream: rank r of n has rows r · rows/n to (r + 1) · rows/n. x
// stands where shared_term() says.
struct SharesAndNorm {
  Tensor residual;  // [rows/n, hidden], in and out
  Tensor weight;    // [hidden]
  float epsilon = 1e-5f;
  Tensor out;  // [rows, hidden], all of them on every rank: shared_out(); or codes from there on
  // Of codes (kernels/rms_norm.h), [1, rows] in f32, right behind them, else empty: all of them on every
  // rank, of kept rows, too. The same on every rank.
  Tensor out_scales{};
  // out gets this rank's rows alone: the next kernel of the group's ranks hands them to the others
  // (NormReducer::handed_rows). The same on every rank.
  bool kept = false;
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

  // Where the next such call has the ranks' terms, for kernels of other work that send this rank's, and for
  // those that take all of a single row, in the place of the call. Whether they do is each rank's own affair.
  // Nowhere (size 0) where they may not: who takes a single row waits on all of a GPU's processors, so that
  // no other rank or group may need them, of another process or of this one.
  virtual device::PeerTerms terms(int64_t rows, int64_t hidden, DType dtype) const = 0;

  // The same where ranks share the residual (sequence parallelism): a reduce-scatter, the addition and the
  // norm of a share of the rows, an all-gather. `rows` of all ranks together.
  virtual bool takes_shares(int64_t rows, int64_t hidden, DType dtype) const = 0;
  // Null unless such a call is taken. [rows/n, hidden]: where this rank's term of `rank`'s rows has to be: in
  // this rank's memory, one share behind the other, or of many rows that are handed over in that rank's. Work
  // on the stream of the calls writes it.
  virtual Tensor shared_term(int rank, int64_t rows, int64_t hidden, DType dtype) const = 0;
  // From now on terms of many rows are handed to the ranks whose rows they are. All ranks say so, or none,
  // and before any call.
  virtual void hand_terms() = 0;
  // Where out has to be; it stays until the group's next call.
  virtual Tensor shared_out(int64_t rows, int64_t hidden, DType dtype) const = 0;
  // What hands the rows that such a call has kept. Nowhere (size 0) where this rank has to leave them to the
  // call: ranks agree before they keep any. Who hands rows waits on all of a GPU's processors, as who takes
  // terms.
  // codes: the rows are.
  virtual device::HandedRows handed_rows(int64_t rows, int64_t hidden, DType dtype, bool codes) const = 0;
  virtual void add_rms_norm_of_shares(const SharesAndNorm& call, device::Stream& stream) = 0;
  // The sum and the addition alone. residual: [rows/n, hidden].
  virtual void add_shares(const Tensor& residual, device::Stream& stream) = 0;
};

}  // namespace llm_dist::comm
