// Launches of kernels that start while the one in front of them ends (device/overlap.cuh).
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace llm_dist::kernels {

// Launches a kernel that may start before the one in front of it on the stream has ended (programmatic
// dependent launch): all of its threads call wait_for_previous() before they touch anything that a step
// writes (device/overlap.cuh), and before they return.
template <typename... Params, typename... Args>
void launch_overlapped(
    void (*kernel)(Params...), dim3 grid, int threads, cudaStream_t stream, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);  // the caller asks for the error
}

}  // namespace llm_dist::kernels
