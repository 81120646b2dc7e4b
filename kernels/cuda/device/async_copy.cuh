// Copies to shared memory that a thread starts for itself and waits for in groups (PTX ISA, "cp.async").
// Needs compute capability 8.0.
#pragma once

#include <cstdint>

namespace llm_dist::kernels {

// Starts the copy of 16 bytes, past the first-level cache; where not `wanted`, of 16 zeros, and nothing is
// read. `to`: a shared address.
__device__ inline void copy_load(uint32_t to, const void* from, bool wanted, uint64_t policy) {
  const uint32_t bytes = wanted ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
               "l"(from),
               "r"(bytes),
               "l"(policy)
               : "memory");
}
// What this thread has started since the last call is a group.
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when at most kLeft of this thread's groups are on their way, the youngest.
template <int kLeft>
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace llm_dist::kernels
