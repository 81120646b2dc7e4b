#include "kernels/cuda/hopper_device.h"

#include <utility>

#include "src/device/cuda/cuda_error.h"

namespace llm_dist::kernels {
namespace {

#ifdef LLM_DIST_SM90A
constexpr bool kCompiled = true;
#else
constexpr bool kCompiled = false;  // for other GPUs: there the kernels have no body
#endif

}  // namespace

Result<HopperDevice> HopperDevice::ask() {
  HopperDevice asked;
  RETURN_IF_ERROR(device::cuda_status(cudaGetDevice(&asked.index), "cudaGetDevice"));
  int major = 0;
  int minor = 0;
  const std::pair<cudaDeviceAttr, int*> attributes[] = {
      {cudaDevAttrMultiProcessorCount, &asked.processors},
      {cudaDevAttrComputeCapabilityMajor, &major},
      {cudaDevAttrComputeCapabilityMinor, &minor},
  };
  for (const auto& [attribute, value] : attributes) {
    RETURN_IF_ERROR(
        device::cuda_status(cudaDeviceGetAttribute(value, attribute, asked.index), "cudaDeviceGetAttribute"));
  }
  asked.supported = kCompiled && major == 9 && minor == 0 && asked.encoder.find() == cudaSuccess;
  return asked;
}

}  // namespace llm_dist::kernels
