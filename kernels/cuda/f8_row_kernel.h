// What F8Row (f8_row.cpp) and its kernel (f8_row.cu) share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/f8_row.h"

namespace llm_dist::kernels::f8_row {

// Whether shared memory has room for a row of x beside weights on their way.
bool has_room(int64_t k, bool with_norm);
// Whether every processor takes a block.
bool fits_processors();
// `readers`: zero; it is when the kernel has ended.
cudaError_t launch(const F8RowOps& ops, uint32_t* readers, int processors, cudaStream_t stream);

}  // namespace llm_dist::kernels::f8_row
