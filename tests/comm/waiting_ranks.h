// What tests of ranks that wait for each other on GPUs need of the environment.
#pragma once

#include <cstdlib>
#include <string_view>

namespace llm_dist::comm {

// LLM_DIST_TEST_RANKS_SHARE_GPU=1: all ranks, threads of one process, have the first GPU together, so that
// what several GPUs do can be tried where there is one (shared_gpu.h).
inline bool ranks_share_gpu() {
  const char* value = std::getenv("LLM_DIST_TEST_RANKS_SHARE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

// Before CUDA is called for the first time. A stream must not stand behind another in a queue of the GPU's,
// and where ranks share one, a kernel that is loaded late would wait for those under way: either may wait for
// a rank that waits for this one.
inline void prepare_for_waiting_ranks() {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (ranks_share_gpu()) setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

}  // namespace llm_dist::comm
