// Functions of CUDA's driver, which nothing links: found by name, at run time.
#pragma once

#include <cuda_runtime.h>

namespace llm_dist::device {

// The driver's function `name` as CUDA 12.0 has it: cast it to decltype(&name) of <cuda.h>. Otherwise, as
// where the driver has none, an error, `function` null, and nothing that the next call would find.
inline cudaError_t find_driver_function(const char* name, void*& function) {
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kFirstVersion = 12000;
  cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, kFirstVersion, cudaEnableDefault, &result);
#else
  cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &result);
#endif
  if (error == cudaSuccess && function == nullptr) error = cudaErrorNotSupported;
  if (error != cudaSuccess) {
    function = nullptr;
    (void)cudaGetLastError();
  }
  return error;
}

}  // namespace llm_dist::device
