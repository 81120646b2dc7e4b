// The product of streamed_linear.h with the same work for every block. Needs compute capability 9.0.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/hopper_device.h"
#include "kernels/cuda/matmul_shape.h"
#include "kernels/cuda/stream_memory.h"

namespace llm_dist::kernels {

// Of 64 rows of W, or of 128.
enum class Strips : uint8_t { kNarrow, kWide };

// Of what StreamedLinear takes, on a device of at most StreamMemory::kMostProcessors.
cudaError_t launch_even_linear(const HopperDevice& device,
                               const MatmulShape& shape,
                               const MatmulOperands& operands,
                               Strips strips,
                               const StreamMemory& memory,
                               cudaStream_t stream);

}  // namespace llm_dist::kernels
