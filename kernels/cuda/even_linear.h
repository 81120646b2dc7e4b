// The product of streamed_linear.h with the same work for every block. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/stream_memory.h"
#include "kernels/cuda/streamed_division.h"

namespace llm_dist::kernels {

// Of what StreamedLinear takes; of `division` any form but kParts. `clusters`: how many of the blocks that
// share x run at the same time. `takes`: whether strips can be dealt out so.
bool takes_even_strips(const HopperDevice& device,
                       int clusters,
                       const MatmulShape& shape,
                       const StreamedDivision& division);
cudaError_t launch_even_linear(const HopperDevice& device,
                               int clusters,
                               const MatmulShape& shape,
                               const MatmulOperands& operands,
                               const StreamedDivision& division,
                               const StreamMemory& memory,
                               cudaStream_t stream);

}  // namespace llm_dist::kernels
