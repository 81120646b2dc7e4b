// Stream-K (Osama et al. 2023): the steps of all strips of W, one strip behind the other, are cut into ranges
// of the same length, one a block, and there are no more blocks than run at the same time. So none has less
// to read than another, and the copies of the next strip are on their way while the sums of one become y.
// Strips may be wide: however few they are, no block is without work.
//
// Where a range begins or ends within a strip, blocks share it. The one with its first columns, which comes
// to it last of all, adds what the others have left in memory, in the order of the columns, and writes y. The
// others came to it first of all: mostly the sums are there when they are asked for. Those of a single other
// block are asked for before the strip's last stages are multiplied, which come meanwhile.
//
// A block waits for blocks of lower numbers alone. Those are started before it, so that it would see the end
// of them even where other kernels keep some processors to themselves.
//
// Nothing is passed on where ranges are whole strips. And two blocks or four may be at the same columns of
// neighbouring strips and bring each other their share of x: what holds for a block above then holds for such
// a cluster.
#include <algorithm>

#include "kernels/cuda/device/second_level.cuh"
#include "kernels/cuda/device/streamed_launch.cuh"
#include "kernels/cuda/device/streamed_products.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/tiled_output.cuh"
#include "kernels/cuda/even_linear.h"

namespace llm_dist::kernels {
namespace {

using namespace streamed;

// Which block works on what. Ranges are numbered in the order of W, blocks the other way round.
struct Ranges {
  int count;   // blocks, or clusters of those that share x
  int length;  // in steps
  int longer;  // the first so many ranges have one more

  __device__ Ranges(int steps, int sharing)
      : count(static_cast<int>(gridDim.x) / sharing), length(steps / count), longer(steps % count) {}
  __device__ int mine(int sharing) const { return count - 1 - static_cast<int>(blockIdx.x) / sharing; }
  __device__ int begin(int range) const { return range * length + min(range, longer); }
  // The first range behind `range` that begins at `step` or behind it.
  __device__ int next_from(int range, int step) const {
    do ++range;
    while (begin(range) < step);
    return range;
  }
};

__device__ inline void raise_flag(uint32_t* flag) {
  asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ inline bool is_raised(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value != 0;
}
// Returns when the flag has been raised, and lowers it. What should take microseconds is given up after some
// ten seconds.
__device__ inline void await_flag(uint32_t* flag) {
  constexpr int kMostTries = 1 << 24;  // each goes to the second-level cache
  for (int tries = 0; !is_raised(flag); ++tries) {
    if (tries == kMostTries) __trap();
  }
  *flag = 0;
}

// A range has at most one strip to leave, its first. A warp's sums go to the same warp of another block, by a
// flag of their own.
template <typename S>
struct Exchange {
  static constexpr int kSums = S::kTokens / 2;  // of a thread
  static constexpr int kVecs = kSums / 4;
  static constexpr int64_t kMostRanges = int64_t{StreamMemory::kMostProcessors} * S::kBlocks;
  static_assert(kMostRanges * S::kMultipliers * kSums * sizeof(float) <= StreamMemory::kSumBytes);
  static_assert(kMostRanges * S::kWarps * sizeof(uint32_t) <= StreamMemory::kFlagBytes);
  const StreamMemory& memory;
  int warp;

  __device__ float4* place(int range) const {
    return reinterpret_cast<float4*>(memory.sums) + S::strip_of(range) * kVecs * S::kMultipliers +
           threadIdx.x;
  }
  __device__ uint32_t* flag(int range) const { return memory.flags + S::strip_of(range) * S::kWarps + warp; }

  __device__ void leave(int range, const float (&sums)[kSums]) const {
    float4* to = place(range);
#pragma unroll
    for (int i = 0; i < kVecs; ++i) to[i * S::kMultipliers] = sums_of_group(sums, i);
    __syncwarp();
    if (threadIdx.x % kWarpSize == 0) raise_flag(flag(range));
  }
  // Adds what ranges [begin, end) leave.
  __device__ void add_others(int begin, int end, float (&sums)[kSums]) const {
    for (int range = begin + static_cast<int>(threadIdx.x) % kWarpSize; range < end; range += kWarpSize)
      await_flag(flag(range));
    __syncwarp();
    constexpr int kAtOnce = kVecs > 16 ? 8 : kVecs;  // registers are few
#pragma unroll(kVecs > 8 ? 1 : 2)
    for (int range = begin; range < end; ++range) {
      const float4* from = place(range);
#pragma unroll
      for (int first = 0; first < kVecs; first += kAtOnce) {
        float4 left[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          left[i] = load_from_second_level(from + (first + i) * S::kMultipliers);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          float* to = sums + 4 * (first + i);
          to[0] += left[i].x;
          to[1] += left[i].y;
          to[2] += left[i].z;
          to[3] += left[i].w;
        }
      }
    }
  }
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    even_linear(const __grid_constant__ CUtensorMap w,
                const __grid_constant__ CUtensorMap x,
                const __grid_constant__ StreamArgs args,
                const float* scales,
                const T* bias,
                void* y,
                const __grid_constant__ device::PeerTerms terms,
                int strips,
                StreamMemory memory) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * S::kCount];
  const S stages = S::make(raw, barriers);
  if constexpr (S::kSharing > 1) arrive_at_cluster();
  if (terms.size == 0) let_next_start();
  const Ranges ranges(strips * args.steps, S::kSharing);
  const int range = ranges.mine(S::kSharing);
  const int end = ranges.begin(range + 1);
  int at = ranges.begin(range);
  const int warp = warp_number();
  if (warp == S::kBringer) {
    if (threadIdx.x == S::kMultipliers) {
      bring_tiles(w, x, args, {at / args.steps, at % args.steps}, end - at, stages);
    } else if constexpr (S::kSharing > 1) {
      await_cluster_alone();
    }
    __syncwarp();
    wait_for_previous();
    if constexpr (S::kSharing > 1) await_readers();
    return;
  }
  wait_for_previous();
  if (terms.size > 0) let_next_start();
  if constexpr (S::kSharing > 1) await_cluster();
  using Output = OutputOf<T, S>;
  const Exchange<S> exchange{memory, warp};
  Reading<S> reading(end - at);
  while (at < end) {
    const int strip = at / args.steps;
    const int strip_end = (strip + 1) * args.steps;
    const bool has_first = at == strip * args.steps;
    const int count = min(strip_end, end) - at;
    // Ranges [range + 1, others_end) leave sums for this one. Where a single one does, and is done here by
    // then, they are fetched while the last stages come.
    const int others_end = has_first && strip_end > end ? ranges.next_from(range, strip_end) : range + 1;
    const bool is_left_before = others_end == range + 2 && strip_end - end + S::kCount <= ranges.length;
    const int last_stages = is_left_before ? min(count, S::kCount) : 0;
    const Output output(args, scales, bias, y, terms, stages, S::strip_of(strip) * S::kStripRows);
    float sums[S::kTokens / 2] = {};
    add_products(T(), count - last_stages, stages, reading, sums);
    at += count;
    if (!has_first) {
      exchange.leave(range, sums);
      continue;
    }
    exchange.add_others(range + 1, others_end, sums);
    add_products(T(), last_stages, stages, reading, sums);
    output.store([&](auto&& put) {
#pragma unroll
      for (int group = 0; group < S::kTokens / 8; group += Output::kAtOnce) {
        if (8 * group >= args.rows) break;
        float4 some[Output::kAtOnce];
#pragma unroll
        for (int i = 0; i < Output::kAtOnce; ++i) some[i] = sums_of_group(sums, group + i);
        put(group, 1, some);
      }
    });
  }
  if constexpr (S::kSharing > 1) {
    __syncwarp();
    await_readers();
  }
#endif
}

// with_stages_of_division(shape, division, run): calls run(T(), Stages()).
template <typename Run>
cudaError_t with_stages_of_division(const MatmulShape& shape, const StreamedDivision& division, Run&& run) {
  if (division.sharing == 4) return with_stages<2, 4>(shape, run);
  if (division.sharing == 2) return with_stages<2, 2>(shape, run);
  return division.wide ? with_stages<2>(shape, run) : with_stages<1>(shape, run);
}

// Strips side by side, or as many of them as share x.
template <typename S>
int64_t strip_count(const MatmulShape& shape) {
  return ceil_div(strips_of<S>(shape), S::kSharing);
}
// Ranges: as many as `clusters` of blocks that run at the same time; 0 where strips cannot be dealt out to
// those as they are to be.
template <typename S>
int64_t range_count(int clusters, const MatmulShape& shape, StreamedDivision::Form form) {
  const int64_t most = int64_t{clusters} * S::kBlocks;
  const int64_t strips = strip_count<S>(shape);
  if (form == StreamedDivision::Form::kEven) return std::min(most, strips * steps_of<S>(shape));
  const int64_t strips_of_range = ceil_div(strips, most);
  return strips % strips_of_range == 0 ? strips / strips_of_range : 0;
}

}  // namespace

bool takes_even_strips(const HopperDevice& device,
                       int clusters,
                       const MatmulShape& shape,
                       const StreamedDivision& division) {
  if (device.processors > StreamMemory::kMostProcessors || clusters == 0) return false;
  int64_t ranges = 0;
  (void)with_stages_of_division(shape, division, [&](auto, auto stages) {
    ranges = range_count<decltype(stages)>(clusters, shape, division.form);
    return cudaSuccess;
  });
  return ranges > 0;
}

cudaError_t launch_even_linear(const HopperDevice& device,
                               int clusters,
                               const MatmulShape& shape,
                               const MatmulOperands& operands,
                               const StreamedDivision& division,
                               const StreamMemory& memory,
                               cudaStream_t stream) {
  const StreamCall call{device.encoder, shape, operands, memory, stream};
  return with_stages_of_division(shape, division, [&](auto type, auto stages) {
    using T = decltype(type);
    using S = decltype(stages);
    const int64_t ranges = range_count<S>(clusters, shape, division.form);
    return launch_streamed<T>(even_linear<T, S>,
                              stages,
                              call,
                              ranges * S::kSharing,
                              S::kSharing > 1 ? S::kSharing : 0,
                              static_cast<int>(strip_count<S>(shape)),
                              memory);
  });
}

}  // namespace llm_dist::kernels
