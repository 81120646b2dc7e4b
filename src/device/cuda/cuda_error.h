// CUDA's errors as Statuses.
#pragma once

#include <cuda_runtime.h>

#include "src/base/status.h"

namespace llm_dist::device {

inline Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return ok_status();
  StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::kResourceExhausted : StatusCode::kInternal;
  return {code, format("{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error))};
}

}  // namespace llm_dist::device
