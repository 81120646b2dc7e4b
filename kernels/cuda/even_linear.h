// The product of streamed_linear.h with the same work for every block. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/stream_memory.h"

namespace llm_dist::kernels {

struct EvenStrips {
  bool wide = false;   // of 128 rows of W, not 64; always for more than 64 rows of x
  bool pairs = false;  // for more than 64 rows of x alone: two blocks at the same columns of neighbouring
                       // strips bring each other half of x
  int parts = 0;       // ranges of a strip; 0: of all strips as many as there are places for blocks
};

bool takes_even_strips(const HopperDevice& device, const MatmulShape& shape, EvenStrips strips);
// Of what StreamedLinear takes, by strips that it takes.
cudaError_t launch_even_linear(const HopperDevice& device,
                               const MatmulShape& shape,
                               const MatmulOperands& operands,
                               EvenStrips strips,
                               const StreamMemory& memory,
                               cudaStream_t stream);

}  // namespace llm_dist::kernels
