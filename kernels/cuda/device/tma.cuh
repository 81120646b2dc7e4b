// Tiles of a matrix that the copy engine of an SM (TMA) brings to shared memory, and the barriers that say
// when they have come (PTX ISA, "cp.async.bulk.tensor", "mbarrier"). Needs compute capability 9.0.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/tiles.cuh"

namespace llm_dist::kernels {

// A barrier whose phases end when `arrivals` threads have come and all announced bytes too.
__device__ inline void barrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}
// Makes barriers that this thread has set up known to the copy engine and, once a barrier of the cluster is
// passed, to its other blocks.
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void barrier_arrive_expecting(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(bytes)
               : "memory");
}
// Returns when the phase of that parity has ended.
__device__ inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Walks a ring of stages; the parity is that of the phase in which a stage is filled.
template <int kCount>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kCount) return;
    stage = 0;
    parity ^= 1;
  }
};

// How long what is read should stay in L2.
__device__ inline uint64_t policy_read_once() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t policy_read_normally() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t policy_read_often() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Starts the copy of the box of `map` whose first element is (row, column); its bytes arrive at `barrier`.
__device__ inline void load_box(
    void* to, const CUtensorMap& map, int column, int row, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map),
      "r"(column),
      "r"(row),
      "r"(shared_address(barrier)),
      "l"(policy)
      : "memory");
}
// The same to that place in every block of the cluster whose bit of `blocks` is set; the bytes that a block
// gets arrive at its own barrier.
__device__ inline void load_box_in_blocks(void* to,
                                          const CUtensorMap& map,
                                          int column,
                                          int row,
                                          uint64_t* barrier,
                                          uint16_t blocks,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(shared_address(to)),
      "l"(&map),
      "r"(column),
      "r"(row),
      "r"(shared_address(barrier)),
      "h"(blocks),
      "l"(policy)
      : "memory");
}
// The same with four dimensions, the first the fastest.
__device__ inline void load_box_4d(
    void* to, const CUtensorMap& map, int c0, int c1, int c2, int c3, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
      "l"(&map),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "r"(c3),
      "r"(shared_address(barrier)),
      "l"(policy)
      : "memory");
}
// With five.
__device__ inline void load_box_5d(void* to,
                                   const CUtensorMap& map,
                                   int c0,
                                   int c1,
                                   int c2,
                                   int c3,
                                   int c4,
                                   uint64_t* barrier,
                                   uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(shared_address(to)),
      "l"(&map),
      "r"(c0),
      "r"(c1),
      "r"(c2),
      "r"(c3),
      "r"(c4),
      "r"(shared_address(barrier)),
      "l"(policy)
      : "memory");
}
// Starts the copy of `bytes` bytes, a multiple of 16 like both addresses; they arrive at `barrier`.
__device__ inline void load_bytes(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          shared_address(to)),
      "l"(from),
      "r"(bytes),
      "r"(shared_address(barrier))
      : "memory");
}
// The same, with how long L2 should keep them.
__device__ inline void load_bytes(
    void* to, const void* from, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from),
      "r"(bytes),
      "r"(shared_address(barrier)),
      "l"(policy)
      : "memory");
}

// Starts the copy of a box from shared memory to (row, column) of `map`; what lies outside is not written.
__device__ inline void store_box(const CUtensorMap& map, int column, int row, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
               "r"(column),
               "r"(row),
               "r"(shared_address(from))
               : "memory");
}
__device__ inline void stores_issued() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the last kLeft groups of what this thread stores have left shared memory.
template <int kLeft>
__device__ inline void stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
// All of it stands in global memory.
__device__ inline void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

}  // namespace llm_dist::kernels
