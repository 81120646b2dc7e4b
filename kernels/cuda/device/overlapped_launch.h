// Launches of kernels that start while the one in front of them ends (device/overlap.cuh).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

namespace llm_dist::kernels {

struct OverlappedLaunch {
  dim3 grid;
  int threads = 0;
  cudaStream_t stream = nullptr;
  int shared_bytes = 0;    // dynamic
  int cluster_blocks = 0;  // along x; 0: no clusters
  bool early = true;       // may start before the one in front has ended, where the device does that
};

// Whether the calling thread's device does: from compute capability 9.0 on.
inline bool starts_kernels_early() {
  enum : int8_t { kNotAsked, kNo, kYes };
  static std::array<std::atomic<int8_t>, 64> known{};
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= static_cast<int>(known.size())) return false;
  std::atomic<int8_t>& of_device = known[static_cast<size_t>(device)];
  if (of_device == kNotAsked) {
    int major = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    of_device = error == cudaSuccess && major >= 9 ? kYes : kNo;
  }
  return of_device == kYes;
}

// Launches a kernel that may start before the one in front of it on the stream has ended (programmatic
// dependent launch): all of its threads call wait_for_previous() before they touch anything that a step
// writes (device/overlap.cuh), and before they return. The second of two kernels that work side by side, of
// prompt_linear.cu and of attention of prompts and decodes, touches what the first one does before it waits:
// that one lets it start when all of its threads have waited. Of the second one a single block that waits is
// enough to order the kernels behind. And who takes terms from the product in front waits in the end
// (device/terms_of_row.cuh): that product lets it start when each of its blocks has waited.
template <typename... Params, typename... Args>
cudaError_t launch_overlapped(void (*kernel)(Params...), const OverlappedLaunch& launch, Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (launch.early && starts_kernels_early()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launch.cluster_blocks > 0) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(launch.cluster_blocks);
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = count;
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
