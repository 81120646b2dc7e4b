// The device's clock, read in stream order.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace llm_dist::device {

// An error where this build has no code for the current GPU.
cudaError_t load_timestamp();

// *pinned_ns = nanoseconds of the GPU's global timer (resolution: 32 ns to 1 µs).
cudaError_t launch_timestamp(int64_t* pinned_ns, cudaStream_t stream);

}  // namespace llm_dist::device
