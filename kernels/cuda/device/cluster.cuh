// Blocks of a cluster: their barrier, and each other's shared memory.
#pragma once

#include "kernels/cuda/device/tiles.cuh"

namespace llm_dist::kernels {

// All threads of all blocks call it, as whole warps. What a thread has written before it, all see behind it.
__device__ inline void meet_cluster() {
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;\n" ::
          : "memory");
}
// What stands at this place of another block's shared memory.
__device__ inline float2 load_from_block(const float2* mine, int block) {
  float2 value;
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %2, %3;\n"
      "ld.shared::cluster.v2.f32 {%0, %1}, [there];\n"
      "}\n"
      : "=f"(value.x), "=f"(value.y)
      : "r"(shared_address(mine)), "r"(block)
      : "memory");
  return value;
}
// Arrives at the barrier (device/tma.cuh) that stands at this place of a block's shared memory, its own or
// another's.
__device__ inline void barrier_arrive_in_block(const uint64_t* mine, int block) {
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(shared_address(mine)),
      "r"(block)
      : "memory");
}

}  // namespace llm_dist::kernels
