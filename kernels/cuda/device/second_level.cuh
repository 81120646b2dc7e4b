// Loads past the first-level cache: what that holds may be older than what other blocks have written since,
// those of a kernel that ran beside this one's beginning (overlap.cuh) too.
#pragma once

#include <cuda_runtime.h>

namespace llm_dist::kernels {

// 16 bytes, written before something that this thread has waited for: a flag that it has acquired, or the
// kernels in front.
template <typename Vec>
__device__ inline Vec load_from_second_level(const Vec* from) {
  static_assert(sizeof(Vec) == 16);
  uint4 raw;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
               : "l"(from)
               : "memory");
  return *reinterpret_cast<const Vec*>(&raw);
}

}  // namespace llm_dist::kernels
