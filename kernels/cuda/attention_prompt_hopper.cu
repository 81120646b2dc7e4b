// Causal attention of prompts over a paged cache with the products of warpgroups (Shah et al. 2024,
// "FlashAttention-3"). A block stays on its processor and takes 128 rows of one kv head's group after the
// other, 64 for each of two warpgroups. It walks from the last keys that its rows see to the first, a tile of
// 128 at a time; the next rows' queries and tiles come meanwhile. A third warpgroup brings the
// tiles: one warp of it asks TMA for them, for all blocks of a tile at once where these follow each other in
// the cache, or, where the cache holds codes, all four widen them. While one tile's keys are scored and
// weighed, the tile before it is still being added up; and one warpgroup weighs while the other one
// multiplies.
#include <algorithm>

#include "kernels/cuda/device/attention_tiles.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/device/widened_tiles.cuh"
#include "kernels/cuda/hopper_prompts.h"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = (kMultipliers + 1) * kGroupThreads;
// Registers that a thread keeps or gets: 65,536 in all.
template <bool kCodes>
constexpr int kBringerRegisters = kCodes ? 88 : 24;
template <bool kCodes>
constexpr int kMultiplierRegisters = kCodes ? 208 : 240;

// The warpgroups take turns in issuing products: wait_turn() returns when the other one has given its.
__device__ inline void wait_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + kMultipliers + group), "n"(2 * kGroupThreads) : "memory");
}
__device__ inline void give_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(2 + kMultipliers - group), "n"(2 * kGroupThreads) : "memory");
}

// Rows of a warpgroup. A thread holds what device/wgmma.cuh says of scores [64 × kTileKeys] and sums
// [64 × kHeadDim].
template <typename T, typename Kv, int kHeadDim>
struct PromptRows {
  using M = PromptMemory<Kv, kHeadDim>;
  using Value = std::conditional_t<M::kCodes, __half, T>;  // and a weight
  static constexpr int kPieces = kHeadDim / 8;             // 16 bytes each, of a row
  // Weights and their sum are 2 to this times too large, so that f16 holds that much smaller ones.
  static constexpr float kLift = M::kCodes ? 14.0f : 0.0f;

  const PagedAttentionArgs& args;
  const M& memory;
  PromptBarriers& barriers;
  int group;  // which warpgroup
  int warp;   // of it
  int lane;
  TileCursors cursors;
  PromptWork work;
  int query_stage;
  int first_row;  // of the warpgroup
  int num_rows;   // of the sequence

  float scores[kTileKeys / 2];
  float out[kHeadDim / 2];
  uint32_t weights[kTileKeys / 16][4];
  float max[2];  // of rows g and g + 8
  float sum[2];  // of this thread's keys only, until finish()
  int visible[2];

  __device__ PromptRows(const PagedAttentionArgs& arguments,
                        const M& shared,
                        PromptBarriers& shared_barriers,
                        int which)
      : args(arguments),
        memory(shared),
        barriers(shared_barriers),
        group(which),
        warp(static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize) {
#pragma unroll
    for (float& value : scores) value = 0;
  }

  // The queries were asked for to that stage.
  __device__ void start(const PromptWork& next, int stage) {
    work = next;
    query_stage = stage;
    first_row = work.item.first_row + group * kGroupRows;
    num_rows = work.num_rows(args.group);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + 16 * warp + 8 * i + lane / 4;
      visible[i] = row < num_rows ? keys_of(row) : 0;
      max[i] = -INFINITY;
      sum[i] = 0;
    }
#pragma unroll
    for (float& value : out) value = 0;
    wait_for_copies();
    release_to_products();
    barrier_of_group(group);
  }

  __device__ int keys_of(int row) const {
    return work.item.context - work.item.num_queries + row / args.group + 1;
  }

  // Where a row of a sequence begins among rows of tokens that are `stride` elements apart.
  __device__ int64_t offset_of(const PromptWork& of, int row, int64_t stride) const {
    return (of.item.query_start + row / args.group) * stride +
           (of.kv_head * args.group + row % args.group) * kHeadDim;
  }
  __device__ uint4* query_piece(int stage, int row, int piece) const {
    return reinterpret_cast<uint4*>(memory.queries(stage, group, piece / 8) + row * kRowBytes) +
           (piece % 8 ^ row % 8);
  }

  // Nobody uses that stage any more.
  __device__ void ask_queries(RowView<const T> queries, const PromptWork& of, int stage) const {
    const int first = of.item.first_row + group * kGroupRows;
    const int rows = of.num_rows(args.group) - first;
#pragma unroll 2
    for (int i = 0; i < kGroupRows * kPieces / kGroupThreads; ++i) {
      const int at = i * kGroupThreads + static_cast<int>(threadIdx.x) % kGroupThreads;
      const int row = at / kPieces;
      const bool there = row < rows;
      const T* from = queries.data + (there ? offset_of(of, first + row, queries.stride) : 0);
      copy_async(query_piece(stage, row, at % kPieces),
                 reinterpret_cast<const uint4*>(from) + (there ? at % kPieces : 0),
                 there);
    }
  }

  // Rows of V that TMA did not bring, or that others have left in what it brought: a weight of zero does not
  // silence a NaN. The other warpgroup writes the same zeros. Codes are zeros there when they are widened.
  __device__ void clear_values(int stage, int count) {
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < (kTileKeys - count) * kPieces;
         i += kGroupThreads) {
      const int row = count + i / kPieces;
      const int piece = i % kPieces;
      std::byte* at = memory.values(stage) + row / 8 * M::kEightKeys + piece / 8 * M::kKeyPart;
      reinterpret_cast<uint4*>(at + row % 8 * kRowBytes)[piece % 8] = {};
    }
    release_to_products();
    barrier_of_group(group);
  }

  __device__ void issue_scores(int stage) {
    products_begin(scores);
#pragma unroll
    for (int k = 0; k < kHeadDim / 16; ++k) {
      const uint64_t a = swizzled_tile(memory.queries(query_stage, group, k / 4) + k % 4 * 32);
      const uint64_t b = swizzled_tile(memory.keys(stage) + k / 4 * M::kKeyPart + k % 4 * 32, M::kEightKeys);
      if (k == 0) {
        multiply_128_tiles<false>(T(), scores, a, b);
      } else {
        multiply_128_tiles<true>(T(), scores, a, b);
      }
    }
    products_issued();
  }
  __device__ void issue_values(int stage) {
    products_begin(out);
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      const std::byte* keys = memory.values(stage) + 2 * k * M::kEightKeys;
      multiply_columns(Value(), out, weights[k], swizzled_columns(keys, M::kEightKeys, M::kKeyPart));
    }
    products_issued();
  }

  __device__ void hide_keys(int first_key) {
#pragma unroll
    for (int j = 0; j < kTileKeys / 2; ++j) {
      const int key = first_key + j / 4 * 8 + lane % 4 * 2 + j % 2;
      if (key >= visible[j / 2 % 2]) scores[j] = -INFINITY;
    }
  }

  // Scores to weights, in place; what the sums so far are to be multiplied by.
  __device__ void weigh(float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float best = max[i];
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j)
        best = fmaxf(best, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      // Nothing seen so far: the exponents would be of infinity minus infinity.
      const float base = best == -INFINITY ? 0.0f : best * args.scale;
      rescale[i] = exp2_approx(max[i] * args.scale - base);
      max[i] = best;
      const float lifted = base - kLift;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kTileKeys / 8; ++j) {
#pragma unroll
        for (int k = 4 * j + 2 * i; k < 4 * j + 2 * i + 2; ++k) {
          scores[k] = exp2_approx(scores[k] * args.scale - lifted);
          added += scores[k];
        }
      }
      sum[i] = sum[i] * rescale[i] + added;
    }
  }

  // As the left side of a product. Only when no product reads the ones before.
  __device__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack_pair(Value(), scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
        asm volatile("" : "+r"(weights[k][i]));
      }
    }
  }

  __device__ void leave(uint64_t* empty) const {
    if (lane == 0) barrier_arrive(empty);
  }

  // All tiles. ask_ahead() where there is time for it.
  template <typename AskAhead>
  __device__ void run(AskAhead&& ask_ahead) {
    Cursor<kKeyStages>& keys = cursors.keys;
    Cursor<kValueStages>& values = cursors.values;
    const int end = work.end(args.group);
    const int count = (end + kTileKeys - 1) / kTileKeys;
    const int sure = first_row < num_rows ? keys_of(first_row) : 0;  // keys that all rows see
    float rescale[2];
    auto weigh_tile = [&](int n) {
      const int first_key = (count - 1 - n) * kTileKeys;
      if (first_key + kTileKeys > sure) hide_keys(first_key);
      weigh(rescale);
    };
    barrier_wait(barriers.full_keys + keys.stage, keys.parity);
    issue_scores(keys.stage);
    ask_ahead();
    products_done<0>(scores);
    leave(barriers.empty_keys + keys.stage);
    keys.advance();
    weigh_tile(0);
    pack_weights();
    if (!M::kCodes && count * kTileKeys > end) {
      barrier_wait(barriers.full_values + values.stage, values.parity);
      clear_values(values.stage, end - (count - 1) * kTileKeys);
    }
    if (group == 1 && count > 1) give_turn(group);
#pragma unroll 1
    for (int n = 1; n < count; ++n) {
      barrier_wait(barriers.full_keys + keys.stage, keys.parity);
      wait_turn(group);
      issue_scores(keys.stage);
      barrier_wait(barriers.full_values + values.stage, values.parity);
      issue_values(values.stage);
      if (group == 0 || n + 1 < count) give_turn(group);
      products_done<1>(scores);
      leave(barriers.empty_keys + keys.stage);
      keys.advance();
      weigh_tile(n);
      hold(scores);  // weighed while the sums are still under way
      products_done<0>(out);
      leave(barriers.empty_values + values.stage);
      values.advance();
#pragma unroll
      for (int j = 0; j < kHeadDim / 2; ++j) out[j] *= rescale[j / 2 % 2];
      pack_weights();
    }
    barrier_wait(barriers.full_values + values.stage, values.parity);
    issue_values(values.stage);
    products_done<0>(out);
    leave(barriers.empty_values + values.stage);
    values.advance();
  }

  // Through this warp's rows of the queries, which it alone still uses, so that each store is of 16 bytes.
  __device__ void finish(RowView<T> to) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 1);
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], 2);
      const float inverse = sum[i] > 0 ? 1.0f / sum[i] : 0.0f;
      const int row = 16 * warp + 8 * i + lane / 4;
#pragma unroll
      for (int m = 0; m < kPieces; ++m) {
        reinterpret_cast<uint32_t*>(query_piece(query_stage, row, m))[lane % 4] =
            pack_pair(T(), out[4 * m + 2 * i] * inverse, out[4 * m + 2 * i + 1] * inverse);
      }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * kPieces; i += kWarpSize) {
      const int row = 16 * warp + i / kPieces;
      if (first_row + row >= num_rows) break;
      T* at = to.data + offset_of(work, first_row + row, to.stride) + i % kPieces * 8;
      *reinterpret_cast<uint4*>(at) = *query_piece(query_stage, row, i % kPieces);
    }
  }
};

// Grid: as the plan says, no more than prompt items · kv heads.
template <typename T, typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1) attend_prompts(const __grid_constant__ PromptCache<Kv> k_cache,
                                                              const __grid_constant__ PromptCache<Kv> v_cache,
                                                              const __grid_constant__ PagedAttentionArgs args,
                                                              KeyPages pages,
                                                              RowView<const T> queries,
                                                              RowView<T> out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using M = PromptMemory<Kv, kHeadDim>;
  extern __shared__ std::byte raw[];
  const M memory{raw + (1024 - shared_address(raw) % 1024) % 1024};
  PromptBarriers& barriers = memory.barriers();
  if (threadIdx.x == 0) {
    constexpr int kReaders = kMultipliers * kGroupThreads / kWarpSize;
    constexpr int kWriters = M::kCodes ? M::kWideners : 1;
    for (uint64_t& barrier : barriers.full_keys) barrier_init(&barrier, kWriters);
    for (uint64_t& barrier : barriers.full_values) barrier_init(&barrier, kWriters);
    for (uint64_t& barrier : barriers.empty_keys) barrier_init(&barrier, kReaders);
    for (uint64_t& barrier : barriers.empty_values) barrier_init(&barrier, kReaders);
    barrier_init_done();
  }
  __syncthreads();
  // The step's decodes may begin now, on the processors that are left: they read what this kernel does.
  wait_for_previous();
  let_next_start();
  // The same in all lanes, and the compiler is to know it: products are issued by whole warps.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kMultipliers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kBringerRegisters<M::kCodes>));
    if constexpr (M::kCodes) {
      widen_work<T>(k_cache, v_cache, args, pages, memory);
    } else if (static_cast<int>(threadIdx.x) < kMultipliers * kGroupThreads + kWarpSize) {
      bring_work(k_cache, v_cache, args, pages, memory);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters<M::kCodes>));
  PromptRows<T, Kv, kHeadDim> rows(args, memory, barriers, group);
  PromptWalk walk(args);
  PromptWork work = walk.next();
  rows.ask_queries(queries, work, 0);
#pragma unroll 1
  for (int stage = 0; work.exists(); stage = (stage + 1) % M::kQueryStages) {
    constexpr bool kAhead = M::kQueryStages > 1;
    PromptWork next;
    if constexpr (kAhead) next = walk.next();
    rows.start(work, stage);
    rows.run([&] {
      if (kAhead && next.exists()) rows.ask_queries(queries, next, 1 - stage);
    });
    rows.finish(out);
    if constexpr (!kAhead) {
      next = walk.next();
      barrier_of_group(group);  // finish() uses the queries' place
      if (next.exists()) rows.ask_queries(queries, next, 0);
    }
    work = next;
  }
#endif
}

}  // namespace

template <typename T, typename Kv, int kHeadDim>
cudaError_t HopperPrompts::launch(const PagedAttentionArgs& args,
                                  const AttentionParams& params,
                                  cudaStream_t stream) const {
  using M = PromptMemory<Kv, kHeadDim>;
  const Tensor& cache = params.k_cache;
  constexpr int64_t kEightKeys = 8 * kHeadDim;
  CHECK(cache.stride(0) % kEightKeys == 0 && cache.stride(1) % kEightKeys == 0,
        "KV cache {}",
        cache.to_string());
  KeyPages pages{.keys = 16,
                 .block_stride = static_cast<int>(cache.stride(0) / kEightKeys),
                 .head_stride = static_cast<int>(cache.stride(1) / kEightKeys),
                 .runs = false};
  constexpr int kMostKeys = M::kCodes ? M::kWidenerKeys : kTileKeys;
  while (pages.keys < kMostKeys && args.block_size % (2 * pages.keys) == 0) pages.keys *= 2;
  const int run_blocks = kTileKeys / pages.keys;
  // Only whole blocks stand one after the other in a box; and the box is no larger than the cache.
  pages.runs = !M::kCodes && run_blocks > 1 && pages.keys == args.block_size && cache.dim(0) >= run_blocks;
  PromptCache<Kv> k_cache{};
  PromptCache<Kv> v_cache{};
  cudaError_t error = cudaSuccess;
  if constexpr (M::kCodes) {
    k_cache = static_cast<const Kv*>(params.k_cache.data);
    v_cache = static_cast<const Kv*>(params.v_cache.data);
  } else {
    auto add_map = [&](const Tensor& keys, int blocks, CUtensorMap& map) {
      if (error != cudaSuccess) return;
      error = encoder_.encode({.dtype = keys.dtype,
                               .data = keys.data,
                               .dimensions = 5,
                               .sizes = {64,
                                         8,
                                         kHeadDim / 64,
                                         (keys.dim(1) - 1) * pages.head_stride + args.block_size / 8,
                                         keys.dim(0)},
                               .strides = {kHeadDim, 64, kEightKeys, keys.stride(0)},
                               .box = {64, 8, kHeadDim / 64, pages.keys / 8, blocks}},
                              map);
    };
    add_map(params.k_cache, 1, k_cache.pages);
    add_map(params.v_cache, 1, v_cache.pages);
    if (pages.runs) {
      add_map(params.k_cache, run_blocks, k_cache.runs);
      add_map(params.v_cache, run_blocks, v_cache.runs);
    }
  }
  constexpr int kBytes = M::kBytes + static_cast<int>(sizeof(PromptBarriers)) + 1024;
  static_assert(kBytes <= 227 << 10);  // what a block can have
  auto* kernel = attend_prompts<T, Kv, kHeadDim>;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int64_t blocks = std::min<int64_t>(args.plan.prompt_blocks, args.plan.num_prompt * args.num_kv_heads);
  const OverlappedLaunch how{.grid = dim3(static_cast<unsigned>(blocks)),
                             .threads = kThreads,
                             .stream = stream,
                             .shared_bytes = kBytes};
  return launch_overlapped(
      kernel, how, k_cache, v_cache, args, pages, rows_as<const T>(params.q), rows_as<T>(params.out));
}

#define LLM_DIST_LAUNCH_HOPPER_PROMPTS(T, Kv, head_dim)        \
  template cudaError_t HopperPrompts::launch<T, Kv, head_dim>( \
      const PagedAttentionArgs&, const AttentionParams&, cudaStream_t) const;
#define LLM_DIST_LAUNCH_HOPPER_PROMPTS_OF(T)           \
  LLM_DIST_LAUNCH_HOPPER_PROMPTS(T, T, 64)             \
  LLM_DIST_LAUNCH_HOPPER_PROMPTS(T, T, 128)            \
  LLM_DIST_LAUNCH_HOPPER_PROMPTS(T, __nv_fp8_e4m3, 64) \
  LLM_DIST_LAUNCH_HOPPER_PROMPTS(T, __nv_fp8_e4m3, 128)
LLM_DIST_LAUNCH_HOPPER_PROMPTS_OF(__nv_bfloat16)
LLM_DIST_LAUNCH_HOPPER_PROMPTS_OF(__half)
#undef LLM_DIST_LAUNCH_HOPPER_PROMPTS_OF
#undef LLM_DIST_LAUNCH_HOPPER_PROMPTS

}  // namespace llm_dist::kernels
