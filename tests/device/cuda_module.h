// The CUDA module of this build, for tests.
#pragma once

#include "kernels/cuda/cuda_module.h"
#include "src/base/run_time_module.h"

namespace llm_dist {

inline Result<const kernels::CudaModule*> cuda_module() {
  ASSIGN_OR_RETURN(void* entry,
                   open_module({.file = kernels::kCudaModuleFile,
                                .entry = kernels::kCudaModuleEntry,
                                .how_to_build = "build with CUDA",
                                .how_to_install = "install CUDA"}));
  const kernels::CudaModule* module = reinterpret_cast<kernels::CudaModuleEntry>(entry)();
  if (module == nullptr || module->version != kernels::kCudaModuleVersion)
    return failed_precondition("the CUDA module belongs to another build of llm-dist");
  return module;
}

}  // namespace llm_dist
