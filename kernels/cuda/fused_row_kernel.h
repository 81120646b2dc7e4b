// What FusedRow (fused_row.cpp) and its kernel (fused_row.cu) share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/fused_row.h"

namespace llm_dist::kernels::fused_row {

// Whether shared memory has room for a row of x beside weights on their way.
bool has_room(int64_t k, bool with_norm);
// Whether every processor takes a block.
bool fits_processors();
// `readers`: zero; it is when the kernel has ended.
cudaError_t launch(const FusedRowOps& ops, uint32_t* readers, int processors, cudaStream_t stream);

}  // namespace llm_dist::kernels::fused_row
