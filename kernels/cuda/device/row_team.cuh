// Blocks that work on one row together: a cluster, whose blocks read each other's shared memory, or one block
// alone. On devices before compute capability 9.0 there are no clusters: a team is one block there.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/row_team.h"

namespace llm_dist::kernels {

__device__ inline int team_blocks() {
#if __CUDA_ARCH__ >= 900
  uint32_t count;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(count));
  return static_cast<int>(count);
#else
  return 1;
#endif
}
__device__ inline int block_of_team() {
#if __CUDA_ARCH__ >= 900
  return static_cast<int>(block_of_cluster());
#else
  return 0;
#endif
}
// What a thread of the team has written before it, in memory or in shared memory, all see behind it. All
// threads call it.
__device__ inline void meet_team() {
#if __CUDA_ARCH__ >= 900
  meet_cluster();
#else
  __syncthreads();
#endif
}
// What another block has at the place of `mine`, a place in shared memory.
__device__ inline uint32_t load_from_team(const uint32_t* mine, int block) {
#if __CUDA_ARCH__ >= 900
  uint32_t value;
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [there];\n"
      "}\n"
      : "=r"(value)
      : "r"(shared_address(mine)), "r"(block)
      : "memory");
  return value;
#else
  return *mine;
#endif
}

// Reductions over all threads of a team, in an order that depends on nothing but the sizes of blocks and
// team. Each lane of a warp asks for what one block has, so that the warp waits once.
class RowTeam {
 public:
  // All threads get the result. What comes twice must not matter to `combine`.
  template <typename T, typename Combine>
  __device__ T reduce(T value, Combine combine) {
    value = block_reduce(value, combine);
    share(value);
    value = shared_by<T>(lane() % team_blocks());
    turn_ ^= 1;
    return warp_reduce(value, combine);
  }
  template <typename T>
  __device__ T sum(T value) {
    return sums(value).all;
  }
  // The sum over the threads before this one, by block and thread, and over all.
  template <typename T>
  struct Sums {
    T before;
    T all;
  };
  template <typename T>
  __device__ Sums<T> sums(T value) {
    const T before_in_block = block_exclusive_sum(value);
    share(block_reduce(value, AddOp()));
    const bool is_block = lane() < team_blocks();
    const T of_block = shared_by<T>(is_block ? lane() : 0);
    turn_ ^= 1;
    return {before_in_block + warp_reduce(lane() < block_of_team() ? of_block : T{0}, AddOp()),
            warp_reduce(is_block ? of_block : T{0}, AddOp())};
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  // Two places in turns: who writes one has met the others since they read it.
  __device__ static uint32_t (&places())[2][2] {
    __shared__ uint32_t values[2][2];
    return values;
  }
  template <typename T>
  __device__ void share(T value) const {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8);
    if (threadIdx.x == 0) memcpy(places()[turn_], &value, sizeof value);
    meet_team();
  }
  template <typename T>
  __device__ T shared_by(int block) const {
    uint32_t words[2] = {};
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i)
      words[i] = load_from_team(&places()[turn_][i], block);
    T value;
    memcpy(&value, words, sizeof value);
    return value;
  }

  int turn_ = 0;
};

}  // namespace llm_dist::kernels
