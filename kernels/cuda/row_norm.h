// The addition and norm of a single row (kernels/rms_norm.h), as ops that are put off keep it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/base/dtype.h"
#include "src/device/peer_terms.h"

namespace llm_dist::kernels {

// residual ← residual + x; out ← its norm. A row of `width` elements; out may be x.
struct RowNorm {
  DType dtype = DType::kBF16;
  const void* x = nullptr;  // not read where terms are
  device::PeerTerms terms;  // of which x is the sum over ranks; size 0: none
  void* residual = nullptr;
  const void* weight = nullptr;
  void* out = nullptr;
  float epsilon = 0;
  int64_t width = 0;

  bool has_terms() const { return terms.size > 0; }
};

// Loads the kernels that take terms: otherwise the first launch does, which may wait for kernels that wait
// for peers.
cudaError_t load_norms_of_terms();

// By a kernel of its own; all addresses and the width in bytes are multiples of 16.
cudaError_t launch_row_norm(const RowNorm& norm, cudaStream_t stream);

}  // namespace llm_dist::kernels
