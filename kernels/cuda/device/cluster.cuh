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
// In two parts, for blocks that only want to know that all have begun: a release waits for what was written.
// Barriers (device/tma.cuh) that barrier_init_done() has made known are known behind it.
__device__ inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;"); }
__device__ inline void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same for threads of a warp that go different ways.
__device__ inline void await_cluster_alone() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ inline uint32_t block_of_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The number of this block's cluster in the grid.
__device__ inline uint32_t cluster_of_grid() {
  uint32_t number;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  return number;
}

// Sends 16 bytes to this shared address of a block, which must have begun; they arrive at its barrier that
// stands at this barrier's place.
__device__ inline void send_to_block(uint32_t mine, float4 value, uint64_t* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .u32 there, barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %6;\n"
      "mapa.shared::cluster.u32 barrier, %5, %6;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%1, %2, %3, %4}, [barrier];\n"
      "}\n" ::"r"(mine),
      "f"(value.x),
      "f"(value.y),
      "f"(value.z),
      "f"(value.w),
      "r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
// The same of 4 bytes.
__device__ inline void send_to_block(uint32_t mine, float value, uint64_t* barrier, int block) {
  asm volatile(
      "{\n"
      ".reg .u32 there, barrier;\n"
      "mapa.shared::cluster.u32 there, %0, %3;\n"
      "mapa.shared::cluster.u32 barrier, %2, %3;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [there], %1, [barrier];\n"
      "}\n" ::"r"(mine),
      "f"(value),
      "r"(shared_address(barrier)),
      "r"(block)
      : "memory");
}
// Returns when the phase of that parity of this block's barrier has ended, with what other blocks have sent.
__device__ inline void barrier_wait_for_blocks(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
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
