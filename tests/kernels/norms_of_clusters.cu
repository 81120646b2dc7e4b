#include "kernels/cuda/device/cluster_of_row.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/overlapped_launch.h"
#include "tests/kernels/norms_of_clusters.h"

namespace llm_dist::kernels {
namespace {

constexpr int kVec = 8;

__device__ void wait_for(int clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

template <bool kByClusters>
__global__ void __launch_bounds__(kMostNormThreads) norms_kernel(const NormsOfClusters norms) {
  using T = __nv_bfloat16;
  ThreadsOfRow<kByClusters> threads;
  for (int row = threads.first_row(); row < norms.rows; row += threads.rows_at_once()) {
    const T* x = static_cast<const T*>(norms.x) + int64_t{row} * norms.width;
    T* out = static_cast<T*>(norms.out) + int64_t{row} * norms.width;
    norm_row<kVec, true>(
        threads,
        norms.width,
        static_cast<const T*>(norms.weight),
        1e-5f,
        [&] { wait_for(norms.delay * ((7 * row + 3 * (threads.thread() / 32)) % 11)); },
        [&](int i, float(&values)[kVec]) { load_vec<kVec>(x + i, values); },
        x,
        out);
  }
}

}  // namespace

cudaError_t norms_of_clusters(const NormsOfClusters& norms, cudaStream_t stream) {
  const int blocks = norms.blocks > 0 ? norms.blocks : 1;
  const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(norms.clusters * blocks)),
                                .threads = norm_threads((norms.width + blocks - 1) / blocks, kVec),
                                .stream = stream,
                                .cluster_blocks = norms.blocks,
                                .early = false};
  auto* kernel = norms.blocks > 0 ? norms_kernel<true> : norms_kernel<false>;
  return launch_overlapped(kernel, launch, norms);
}

}  // namespace llm_dist::kernels
