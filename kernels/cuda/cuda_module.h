// The CUDA module's one entry point: device and ops. The module is the only thing that needs the CUDA runtime
// and cuBLASLt; it is built together with llm-dist, and the version catches a stale one.
#pragma once

#include <memory>
#include <optional>

#include "kernels/cuda/streamed_division.h"
#include "kernels/op_table.h"
#include "src/device/backend.h"

namespace llm_dist::kernels {

inline constexpr int kCudaModuleVersion = 6;
inline constexpr const char* kCudaModuleFile = "libllm_dist_cuda.so";
inline constexpr const char* kCudaModuleEntry = "llm_dist_cuda_module";

struct CudaModule {
  int version = 0;
  int (*visible_devices)() = nullptr;  // 0 where there is no driver
  Result<std::unique_ptr<device::Backend>> (*make_backend)(int index) = nullptr;
  const OpTable* ops = nullptr;
  // Whether ops' kernels may start before the ones in front of them have ended (programmatic dependent
  // launch), where the device does that; true at first. Of the process, and of launches from then on.
  void (*allow_early_starts)(bool allowed) = nullptr;
  // Bytes a second at which kernels read the device's memory, measured.
  Result<double> (*read_bandwidth)(device::Backend& backend) = nullptr;
  // For tests, which are to notice when another kernel ran than theirs: how the kernels for few rows divided
  // the last product of `state`'s Matmul; nothing where it was another's, or where none ran since this was
  // last asked.
  std::optional<StreamedDivision> (*take_last_division)(OpState& state) = nullptr;
};

// Dense weights of the activations' own type, and f8_e4m3 beside 16-bit ones; the loader converts the others.
// Here for whoever plans for GPUs without having any.
inline bool takes_weight_cuda(WeightScheme scheme, DType activation) {
  return scheme == scheme_of(activation) || (scheme == WeightScheme::kF8E4M3 && activation != DType::kF32);
}

using CudaModuleEntry = const CudaModule* (*)();

}  // namespace llm_dist::kernels
