// How kernels that wait for peers are launched.
#pragma once

#include "comm/p2p/all_reduce.h"
#include "kernels/cuda/device/overlapped_launch.h"

namespace llm_dist::comm {

// Whether ranks that have this GPU together cannot stop each other: blocks wait for blocks of their number,
// and start in the order of their numbers, so it is enough that there is room for all ranks' but one's, and
// for some of that one's.
template <typename Kernel>
bool fit_together(Kernel kernel, const kernels::OverlappedLaunch& launch, int num_ranks) {
  int device = 0;
  int multiprocessors = 0;
  int blocks = 0;  // of a multiprocessor
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  (void)cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, kernel, launch.threads, static_cast<size_t>(launch.shared_bytes));
  return static_cast<int>(launch.grid.x) * (num_ranks - 1) < multiprocessors * blocks;
}

// Launches kernel(peers, args...) on this rank's GPU. It may start before the one in front has ended, unless
// the GPU is another rank's too: what starts early and waits would hold room that the kernel which it waits
// for, through that other rank, does not get. What is launched behind it there must not start early either.
// An error where the kernels of ranks that share a GPU do not fit on it together.
template <typename... Params, typename... Args>
cudaError_t launch_beside_peers(void (*kernel)(PeerView, Params...),
                                kernels::OverlappedLaunch launch,
                                const PeerView& peers,
                                Args&&... args) {
  if (peers.shares_gpu && !fit_together(kernel, launch, peers.size))
    return cudaErrorCooperativeLaunchTooLarge;
  launch.early = !peers.shares_gpu;
  (void)kernels::launch_overlapped(kernel, launch, peers, std::forward<Args>(args)...);
  return cudaGetLastError();
}

}  // namespace llm_dist::comm
