// Kernels that norm rows by the threads of a block, and by those of a cluster.
#pragma once

#include <cuda_runtime.h>

namespace llm_dist::kernels {

// out ← the norms of rows of bf16 [rows, width], one behind the other, `clusters` rows at a time.
struct NormsOfClusters {
  const void* x = nullptr;
  const void* weight = nullptr;  // [width]
  void* out = nullptr;
  int rows = 0;
  int width = 0;
  int clusters = 1;
  int blocks = 0;  // of a cluster; 0: a block alone, without one
  int delay = 0;   // clocks by which warps are apart before they add up, as row, block and warp say
};

cudaError_t norms_of_clusters(const NormsOfClusters& norms, cudaStream_t stream);

}  // namespace llm_dist::kernels
