// Launches of kernels that start while the one in front of them ends (device/overlap.cuh).
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "src/base/log.h"

namespace llm_dist::kernels {

struct OverlappedLaunch {
  dim3 grid;
  int threads = 0;
  cudaStream_t stream = nullptr;
  int shared_bytes = 0;    // dynamic
  int cluster_blocks = 0;  // along x; 0: no clusters
  bool early = true;       // may start before the one in front has ended, where the device does that
};

// Of the calling thread's device; 0 where that cannot be found out.
inline int compute_capability_major() {
  static std::array<std::atomic<int8_t>, 64> known{};  // and one more; 0: not asked yet
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= static_cast<int>(known.size())) return 0;
  std::atomic<int8_t>& of_device = known[static_cast<size_t>(device)];
  if (of_device == 0) {
    int major = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    of_device = static_cast<int8_t>(error == cudaSuccess ? major + 1 : 1);
  }
  return of_device - 1;
}

// A module's own: the CUDA module's and the NCCL module's are set apart.
inline std::atomic<bool> early_starts_allowed{true};

// Whether it may start a kernel before the one in front has ended.
inline bool starts_kernels_early() { return early_starts_allowed && compute_capability_major() >= 9; }

// Whether it has clusters, as far as kernels are compiled for them: on 9.0 alone. Code for less that a later
// device runs knows none.
inline bool has_clusters() { return compute_capability_major() == 9; }

// A launch as the runtime wants it.
class LaunchConfig {
 public:
  explicit LaunchConfig(const OverlappedLaunch& launch) {
    if (launch.early && starts_kernels_early()) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (launch.cluster_blocks > 0) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs++].val.clusterDim = {static_cast<unsigned>(launch.cluster_blocks), 1, 1};
    }
    config_.gridDim = launch.grid;
    config_.blockDim = dim3(static_cast<unsigned>(launch.threads));
    config_.dynamicSmemBytes = static_cast<size_t>(launch.shared_bytes);
    config_.stream = launch.stream;
    config_.attrs = attributes_;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchAttribute attributes_[2]{};
  cudaLaunchConfig_t config_{};
};

inline void warn_of_unknown_clusters(const OverlappedLaunch& launch, cudaError_t error) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log_warning(
      "clusters of {} blocks of {} threads with {} bytes of shared memory: how many run at the same "
      "time is not known, and products do without: {}",
      launch.cluster_blocks,
      launch.threads,
      launch.shared_bytes,
      cudaGetErrorString(error));
}

// How many clusters of `launch` run at the same time on the calling thread's device, where nothing else does;
// 0 where that cannot be found out, of which the log tells once. The kernel may have as much shared memory as
// the launch has from then on.
template <typename... Params>
int clusters_at_once(void (*kernel)(Params...), const OverlappedLaunch& launch) {
  int clusters = 0;
  OverlappedLaunch alone = launch;
  alone.early = false;  // of no account here, and one attribute less to be refused
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, LaunchConfig(alone).get());
  if (error == cudaSuccess) return clusters;
  (void)cudaGetLastError();  // or the next launch would be blamed for it
  warn_of_unknown_clusters(launch, error);
  return 0;
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
  return cudaLaunchKernelEx(LaunchConfig(launch).get(), kernel, static_cast<Params>(args)...);
}

// The same where the caller asks for the error of several launches at once (cudaGetLastError).
template <typename... Params, typename... Args>
void launch_overlapped(
    void (*kernel)(Params...), dim3 grid, int threads, cudaStream_t stream, Args&&... args) {
  const OverlappedLaunch launch{.grid = grid, .threads = threads, .stream = stream};
  (void)launch_overlapped(kernel, launch, std::forward<Args>(args)...);
}

}  // namespace llm_dist::kernels
