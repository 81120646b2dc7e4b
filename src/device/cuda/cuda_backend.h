// A CUDA device as a Backend. Lives in the CUDA module (kernels/cuda/cuda_module.h).
#pragma once

#include <memory>

#include "src/device/backend.h"

namespace llm_dist::device {

// GPUs that this process sees; 0 where there is no driver.
int visible_cuda_devices();

// failed_precondition when there is no device `index` or it cannot be used.
Result<std::unique_ptr<Backend>> make_cuda_backend(int index);

}  // namespace llm_dist::device
