// A row's threads where a cluster of blocks has it (norm_row.cuh). Needs compute capability 9.0.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace llm_dist::kernels {

// Warps, 32 at most in all, send their sums to the other blocks, where they arrive at a barrier: a barrier of
// the cluster would also wait for all that they have stored before, at other GPUs, too.
//
// Sums take two places and their barriers in turn. Who sends for sum n + 2 has heard from all other blocks in
// sum n + 1, and those have ended sum n before they sent for it: nobody reads its place any more, and its
// barrier has begun the next phase.
class ClusterOfRow {
 public:
  // All threads make one.
  __device__ ClusterOfRow() {
    if (threadIdx.x == 0) {
      for (uint64_t& come : shared().come) barrier_init(&come, 1);
      barrier_init_done();
    }
    __syncwarp();
    arrive_at_cluster();
  }
  __device__ int first_row() const { return static_cast<int>(blockIdx.x) / team_blocks(); }
  __device__ int rows_at_once() const { return static_cast<int>(gridDim.x) / team_blocks(); }
  __device__ int thread() const {
    return block_of_team() * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
  }
  __device__ int threads() const { return team_blocks() * static_cast<int>(blockDim.x); }
  // Of all of them, to each: warp by warp, the first block's first.
  __device__ float sum(float value) {
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int blocks = team_blocks();
    const int block = block_of_team();
    const int turn = sums_ % 2;
    InTurn<float>& of_warps = shared().of_warps[turn];
    uint64_t* come = &shared().come[turn];
    value = warp_reduce(value, AddOp());
    if (sums_ == 0) {  // all blocks have to have begun
      __syncwarp();
      await_cluster();
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < blocks) {
      float& mine = of_warps.at(block * warps + static_cast<int>(threadIdx.x) / 32);
      if (lane == block) {
        mine = value;
      } else {
        send_to_block(shared_address(&mine), value, come, lane);
      }
    }
    if (threadIdx.x == 0)
      barrier_arrive_expecting(come, static_cast<uint32_t>((blocks - 1) * warps * sizeof(float)));
    __syncthreads();
    barrier_wait_for_blocks(come, static_cast<uint32_t>(sums_ / 2 % 2));
    ++sums_;
    return of_warps.reduce(blocks * warps, AddOp());
  }

 private:
  struct Shared {
    InTurn<float> of_warps[2];
    uint64_t come[2];
  };
  __device__ static Shared& shared() {
    __shared__ Shared of_block;
    return of_block;
  }

  int sums_ = 0;  // made
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <bool>  // where nothing is launched in clusters
using ThreadsOfRow = BlockOfRow;
#else
template <bool kByClusters>
using ThreadsOfRow = std::conditional_t<kByClusters, ClusterOfRow, BlockOfRow>;
#endif

}  // namespace llm_dist::kernels
