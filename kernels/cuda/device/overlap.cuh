// Kernels that start while the one in front of them ends (overlapped_launch.h). What no step writes, weights
// above all, may be read before wait_for_previous(). Before compute capability 9.0 none starts early.
#pragma once

namespace llm_dist::kernels {

// Returns when every kernel in front of this one has ended and its writes can be seen.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The kernel behind this one may start once all blocks have said so or ended.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace llm_dist::kernels
