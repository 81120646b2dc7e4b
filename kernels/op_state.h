// OpState: what a backend's ops keep between calls on one rank (threads, workspace, cached library
// primitives).
#pragma once

#include <cstdint>
#include <memory>

#include "src/base/dtype.h"
#include "src/base/status.h"
#include "src/device/backend.h"

namespace llm_dist::kernels {

// Which kernels multiply rows by a matrix, where a device has both a library's and ours. From kEven on: ours,
// and of those one way to divide the work between blocks, wherever it can be had. kEven: all blocks have the
// same work; kEvenWide: with more rows of the matrix at a time; kEvenPairs: besides, two blocks bring each
// other rows; kEvenQuads: four do; kWholePairs and kWholeQuads: so many have rows of the matrix to
// themselves; kThreeParts: three blocks share rows of the matrix; kPairsOfParts: two do, and bring rows to
// the two beside them; kPairsOfThreeParts and kPairsOfFourParts: so many do; kNarrowStrips: each block has
// half as many rows of the matrix to itself; kTwoNarrowParts, kThreeNarrowParts and kFourNarrowParts: so many
// blocks share those.
enum class LinearKernels : uint8_t {
  kFastest,
  kLibrary,
  kOwn,
  kEven,
  kEvenWide,
  kEvenPairs,
  kEvenQuads,
  kWholePairs,
  kWholeQuads,
  kThreeParts,
  kPairsOfParts,
  kPairsOfThreeParts,
  kPairsOfFourParts,
  kNarrowStrips,
  kTwoNarrowParts,
  kThreeNarrowParts,
  kFourNarrowParts,
};

// Which kernels attend. kPortable: to prompts, where a device has some of its own, those that every device
// takes; in steps of decodes alone, where there are some of tensor cores, those without, whose twins they
// are.
enum class AttentionKernels : uint8_t { kFastest, kPortable };

struct OpStateOptions {
  int threads = 1;  // CPU only
  DType activation_dtype = DType::kF32;
  int64_t max_tokens = 0;    // the most rows that any op of this state gets
  int64_t max_features = 0;  // the widest row (input features of any linear layer)
  int64_t max_sequences = 0;
  int64_t vocab_size = 0;  // widest row of logits, padded
  LinearKernels linear = LinearKernels::kFastest;
  AttentionKernels attention = AttentionKernels::kFastest;
  // Ops on a single row may go out together, as a kernel with a block on every processor of the device.
  bool persistent_kernels = true;
  bool row_teams = true;    // blocks may share a row of logits
  bool autotune = true;     // else tuning tries nothing, and what other runs have found out is not asked
  bool f8_weights = false;  // some linear layers have f8_e4m3 weights
  // A row's results have the same bits whatever stands beside it. failed_precondition where a device has no
  // such kernels.
  bool batch_invariant = false;
};

class OpState {
 public:
  virtual ~OpState() = default;
  // Between these calls an op may try several kernels for a shape that it meets for the first time, keep the
  // fastest and remember it between runs. It then waits for the stream, which must not be capturing.
  virtual void start_tuning() {}
  virtual void end_tuning() {}
};

}  // namespace llm_dist::kernels
