#include "tests/comm/whole_device.h"

namespace llm_dist::comm {
namespace {

constexpr int kThreads = 32;

int attribute(cudaDeviceAttr what) {
  int device = 0;
  int value = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&value, what, device);
  return value;
}

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void __launch_bounds__(kThreads) meet(uint32_t* met, uint64_t most_ns) {
  if (threadIdx.x != 0) return;
  const uint64_t begin = now_ns();
  atomicAdd(&met[0], 1);
  while (atomicAdd(&met[0], 0) < gridDim.x) {
    if (now_ns() - begin > most_ns) return;
  }
  atomicAdd(&met[1], 1);
}

}  // namespace

int num_multiprocessors() { return attribute(cudaDevAttrMultiProcessorCount); }

cudaError_t meet_on_whole_device(uint32_t* met, double seconds, cudaStream_t stream) {
  const int bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const cudaError_t error = cudaFuncSetAttribute(meet, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return error;
  meet<<<static_cast<unsigned>(num_multiprocessors()), kThreads, static_cast<size_t>(bytes), stream>>>(
      met, static_cast<uint64_t>(seconds * 1e9));
  return cudaGetLastError();
}

}  // namespace llm_dist::comm
