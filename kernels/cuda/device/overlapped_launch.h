// Launches of kernels that start while the one in front of them ends (device/overlap.cuh).
#pragma once

#include <cuda_runtime.h>

#include <utility>

namespace llm_dist::kernels {

struct OverlappedLaunch {
  dim3 grid;
  int threads = 0;
  cudaStream_t stream = nullptr;
  int shared_bytes = 0;    // dynamic
  int cluster_blocks = 0;  // along x; 0: no clusters
};

// Launches a kernel that may start before the one in front of it on the stream has ended (programmatic
// dependent launch): all of its threads call wait_for_previous() before they touch anything that a step
// writes (device/overlap.cuh), and before they return.
template <typename... Params, typename... Args>
cudaError_t launch_overlapped(void (*kernel)(Params...), const OverlappedLaunch& launch, Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(launch.cluster_blocks);
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = launch.cluster_blocks > 0 ? 2 : 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

// The same where the caller asks for the error of several launches at once (cudaGetLastError).
template <typename... Params, typename... Args>
void launch_overlapped(
    void (*kernel)(Params...), dim3 grid, int threads, cudaStream_t stream, Args&&... args) {
  const OverlappedLaunch launch{.grid = grid, .threads = threads, .stream = stream};
  (void)launch_overlapped(kernel, launch, std::forward<Args>(args)...);
}

}  // namespace llm_dist::kernels
