// A row's threads where blocks share it (norm_row.cuh): those of a cluster. Needs compute capability 9.0.
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace llm_dist::kernels {

// Warps, 32 at most in all, send their sums to the other blocks, where they arrive at a barrier: a barrier of
// the cluster would also wait for all that they have stored before, at other GPUs, too.
class TeamOfRow {
 public:
  // All threads make one.
  __device__ TeamOfRow() {
    if (threadIdx.x == 0) {
      barrier_init(&shared().come, 1);
      barrier_init_done();
    }
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
    if (!met_) await_cluster();
    met_ = true;
    const int warps = static_cast<int>(blockDim.x) / 32;
    const int blocks = team_blocks();
    const int block = block_of_team();
    InTurn<float>& of_warps = shared().of_warps[turn_];
    value = warp_reduce(value, AddOp());
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (lane < blocks) {
      float& mine = of_warps.at(block * warps + static_cast<int>(threadIdx.x) / 32);
      if (lane == block) {
        mine = value;
      } else {
        send_to_block(shared_address(&mine), value, &shared().come, lane);
      }
    }
    if (threadIdx.x == 0)
      barrier_arrive_expecting(&shared().come, static_cast<uint32_t>((blocks - 1) * warps * sizeof(float)));
    __syncthreads();
    barrier_wait(&shared().come, static_cast<uint32_t>(turn_));
    turn_ ^= 1;
    return of_warps.reduce(blocks * warps, AddOp());
  }

 private:
  struct Shared {
    // Taken in turn: who sends a sum has heard from the other blocks since all of those have read the place.
    InTurn<float> of_warps[2];
    uint64_t come;  // a phase for each sum
  };
  __device__ static Shared& shared() {
    __shared__ Shared of_block;
    return of_block;
  }

  bool met_ = false;
  int turn_ = 0;
};

}  // namespace llm_dist::kernels
