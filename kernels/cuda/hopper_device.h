// The GPU as kernels for compute capability 9.0 see it: whether they run there, and what their launches need.
#pragma once

#include "kernels/cuda/tensor_map.h"
#include "src/base/status.h"

namespace llm_dist::kernels {

struct HopperDevice {
  int index = 0;
  int processors = 0;
  // Whether it has that capability, the kernels were compiled for it, and the driver can encode tensor maps:
  // older ones cannot.
  bool supported = false;
  TensorMapEncoder encoder;  // where supported

  // The calling thread's device.
  static Result<HopperDevice> ask();
};

}  // namespace llm_dist::kernels
