// Causal attention of prompts over a paged cache with the products of warpgroups (Shah et al. 2024,
// "FlashAttention-3"). A block has 128 rows of one kv head's group, 64 for each of two warpgroups, and walks
// from the last keys that its rows see to the first, a tile of 128 at a time. A warp of a third warpgroup
// asks TMA for the tiles, as many ahead as shared memory holds. While one tile's keys are scored and weighed,
// the tile before it is still being added up; and one warpgroup weighs while the other one multiplies.
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/hopper_prompts.h"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

#ifdef LLM_DIST_SM90A
constexpr bool kCompiled = true;
#else
constexpr bool kCompiled = false;  // for other GPUs: there the kernel has no body
#endif
constexpr int kGroupThreads = 4 * kWarpSize;  // of a warpgroup
constexpr int kMultipliers = 2;               // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kGroupThreads;
constexpr int kGroupRows = kHopperPromptRows / kMultipliers;
constexpr int kKeys = 128;  // of a tile
// Tiles of K, and of V: those stay longer, until their weights are known and multiplied.
constexpr int kKeyStages = 2;
constexpr int kValueStages = 3;
constexpr int kRowBytes = 128;  // TMA's widest swizzle: 64 dimensions
// Registers that a thread keeps or gets: 65,536 in all.
constexpr int kCopierRegisters = 24;
constexpr int kMultiplierRegisters = 240;
static_assert(kGroupRows == 64);  // what one product takes

// Queries stand as parts of 64 dimensions, each of rows of 128 bytes; keys and values as groups of eight
// rows, each of as many parts: so one copy brings all that stands side by side in a block of the cache. TMA
// permutes the 16-byte pieces of a row.
template <int kHeadDim>
struct Memory {
  static constexpr int kParts = kHeadDim / 64;
  static constexpr int kQueryPart = kGroupRows * kRowBytes;
  static constexpr int kKeyPart = 8 * kRowBytes;
  static constexpr int kEightKeys = kParts * kKeyPart;
  static constexpr int kQueryBytes = kMultipliers * kParts * kQueryPart;
  static constexpr int kTileBytes = kKeys / 8 * kEightKeys;
  static constexpr int kBytes = kQueryBytes + (kKeyStages + kValueStages) * kTileBytes;

  std::byte* base;  // at a multiple of 1024

  __device__ std::byte* queries(int group, int part) const {
    return base + (group * kParts + part) * kQueryPart;
  }
  __device__ std::byte* keys(int stage) const { return base + kQueryBytes + stage * kTileBytes; }
  __device__ std::byte* values(int stage) const { return keys(kKeyStages + stage); }
};

struct Barriers {
  uint64_t full_keys[kKeyStages];
  uint64_t empty_keys[kKeyStages];
  uint64_t full_values[kValueStages];
  uint64_t empty_values[kValueStages];
};

__device__ inline void barrier_of_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}
// The warpgroups take turns in issuing products: wait_turn() returns when the other one has given its.
__device__ inline void wait_turn(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + kMultipliers + group), "n"(2 * kGroupThreads) : "memory");
}
__device__ inline void give_turn(int group) {
  asm volatile("bar.arrive %0, %1;" ::"r"(2 + kMultipliers - group), "n"(2 * kGroupThreads) : "memory");
}

// The caches as the copies see them: eight keys of a head after eight keys, which the strides count.
struct KeyPages {
  int keys;  // of a page, which is what one copy brings: 16 to kKeys
  int block_stride;
  int head_stride;
};

// A warp calls it: the tiles of the keys below `end`, the last first. A lane brings a page.
template <int kHeadDim>
__device__ inline void bring_tiles(const CUtensorMap& k_map,
                                   const CUtensorMap& v_map,
                                   const PagedAttentionArgs& args,
                                   const KeyPages& pages,
                                   int sequence,
                                   int kv_head,
                                   int end,
                                   const Memory<kHeadDim>& memory,
                                   Barriers& barriers) {
  using M = Memory<kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first = lane * pages.keys;  // of this lane's page in a tile
  const int32_t* table = args.block_tables + sequence * args.table_stride;
  const uint64_t policy = policy_read_normally();
  auto block_of = [&](int tile) {
    const int key = tile * kKeys + first;
    return tile >= 0 && first < kKeys && key < end ? table[key / args.block_size] : -1;
  };
  const int count = (end + kKeys - 1) / kKeys;
  int block = block_of(count - 1);
  Cursor<kKeyStages> key_cursor;
  Cursor<kValueStages> value_cursor;
#pragma unroll 1
  for (int tile = count - 1; tile >= 0; --tile) {
    const int next = block_of(tile - 1);
    const int eight_keys = block * pages.block_stride + kv_head * pages.head_stride +
                           (tile * kKeys + first) % args.block_size / 8;
    const int num_pages = (min(kKeys, end - tile * kKeys) + pages.keys - 1) / pages.keys;
    const auto bytes = static_cast<uint32_t>(num_pages * pages.keys / 8 * M::kEightKeys);
    auto bring =
        [&](const CUtensorMap& map, std::byte* to, uint64_t* full, uint64_t* empty, uint32_t parity) {
          barrier_wait(empty, parity ^ 1);
          if (lane == 0) barrier_arrive_expecting(full, bytes);
          __syncwarp();
          if (block >= 0) load_box_4d(to + first / 8 * M::kEightKeys, map, 0, 0, 0, eight_keys, full, policy);
        };
    bring(k_map,
          memory.keys(key_cursor.stage),
          barriers.full_keys + key_cursor.stage,
          barriers.empty_keys + key_cursor.stage,
          key_cursor.parity);
    bring(v_map,
          memory.values(value_cursor.stage),
          barriers.full_values + value_cursor.stage,
          barriers.empty_values + value_cursor.stage,
          value_cursor.parity);
    key_cursor.advance();
    value_cursor.advance();
    block = next;
  }
}

// Rows of a warpgroup. A thread holds what device/wgmma.cuh says of scores [64 × kKeys] and sums
// [64 × kHeadDim].
template <typename T, int kHeadDim>
struct PromptRows {
  using M = Memory<kHeadDim>;
  static constexpr int kPieces = kHeadDim / 8;  // 16 bytes each, of a row

  const PagedAttentionArgs& args;
  const PromptItem& item;
  const M& memory;
  Barriers& barriers;
  int kv_head;
  int group;  // which warpgroup
  int warp;   // of it
  int lane;
  int first_row;  // of the warpgroup
  int num_rows;   // of the sequence

  float scores[kKeys / 2];
  float out[kHeadDim / 2];
  uint32_t weights[kKeys / 16][4];
  float max[2];  // of rows g and g + 8
  float sum[2];  // of this thread's keys only, until finish()
  int visible[2];

  __device__ PromptRows(const PagedAttentionArgs& arguments,
                        const PromptItem& work,
                        const M& shared,
                        Barriers& shared_barriers,
                        int head,
                        int which)
      : args(arguments),
        item(work),
        memory(shared),
        barriers(shared_barriers),
        kv_head(head),
        group(which),
        warp(static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize),
        lane(static_cast<int>(threadIdx.x) % kWarpSize),
        first_row(work.first_row + which * kGroupRows),
        num_rows(work.num_queries * arguments.group) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = first_row + 16 * warp + 8 * i + lane / 4;
      visible[i] = row < num_rows ? keys_of(row) : 0;
      max[i] = -INFINITY;
      sum[i] = 0;
    }
#pragma unroll
    for (float& value : out) value = 0;
#pragma unroll
    for (float& value : scores) value = 0;
  }

  __device__ int keys_of(int row) const { return item.context - item.num_queries + row / args.group + 1; }

  // Where a row of the sequence begins among rows of tokens that are `stride` elements apart.
  __device__ int64_t offset_of(int row, int64_t stride) const {
    return (item.query_start + row / args.group) * stride +
           (kv_head * args.group + row % args.group) * kHeadDim;
  }
  __device__ uint4* query_piece(int row, int piece) const {
    return reinterpret_cast<uint4*>(memory.queries(group, piece / 8) + row * kRowBytes) +
           (piece % 8 ^ row % 8);
  }

  __device__ void load_queries(RowView<const T> queries) {
#pragma unroll
    for (int i = 0; i < kGroupRows * kPieces / kGroupThreads; ++i) {
      const int at = i * kGroupThreads + static_cast<int>(threadIdx.x) % kGroupThreads;
      const int row = at / kPieces;
      uint4 piece{};
      if (first_row + row < num_rows) {
        const T* from = queries.data + offset_of(first_row + row, queries.stride);
        piece = reinterpret_cast<const uint4*>(from)[at % kPieces];
      }
      *query_piece(row, at % kPieces) = piece;
    }
    release_to_products();
    barrier_of_group(group);
  }

  // Rows of V that were not brought, or that others have left there: a weight of zero does not silence a
  // NaN. The other warpgroup writes the same zeros.
  __device__ void clear_values(int stage, int count) {
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < (kKeys - count) * kPieces;
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
      const uint64_t a = swizzled_tile(memory.queries(group, k / 4) + k % 4 * 32);
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
    for (int k = 0; k < kKeys / 16; ++k) {
      const std::byte* keys = memory.values(stage) + 2 * k * M::kEightKeys;
      multiply_columns(T(), out, weights[k], swizzled_columns(keys, M::kEightKeys, M::kKeyPart));
    }
    products_issued();
  }

  __device__ void hide_keys(int first_key) {
#pragma unroll
    for (int j = 0; j < kKeys / 2; ++j) {
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
      for (int j = 0; j < kKeys / 8; ++j)
        best = fmaxf(best, fmaxf(scores[4 * j + 2 * i], scores[4 * j + 2 * i + 1]));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
      best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
      // Nothing seen so far: the exponents would be of infinity minus infinity.
      const float base = best == -INFINITY ? 0.0f : best * args.scale;
      rescale[i] = exp2_approx(max[i] * args.scale - base);
      max[i] = best;
      float added = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int k = 4 * j + 2 * i; k < 4 * j + 2 * i + 2; ++k) {
          scores[k] = exp2_approx(scores[k] * args.scale - base);
          added += scores[k];
        }
      }
      sum[i] = sum[i] * rescale[i] + added;
    }
  }

  // As the left side of a product. Only when no product reads the ones before.
  __device__ void pack_weights() {
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        weights[k][i] = pack_pair(T(), scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
        asm volatile("" : "+r"(weights[k][i]));
      }
    }
  }

  __device__ void leave(uint64_t* empty) const {
    if (lane == 0) barrier_arrive(empty);
  }

  // The tiles of the keys below `end`.
  __device__ void run(int end) {
    const int count = (end + kKeys - 1) / kKeys;
    const int sure = first_row < num_rows ? keys_of(first_row) : 0;  // keys that all rows see
    float rescale[2];
    auto weigh_tile = [&](int n) {
      const int first_key = (count - 1 - n) * kKeys;
      if (first_key + kKeys > sure) hide_keys(first_key);
      weigh(rescale);
    };
    barrier_wait(barriers.full_keys, 0);
    issue_scores(0);
    products_done<0>(scores);
    leave(barriers.empty_keys);
    weigh_tile(0);
    pack_weights();
    if (count * kKeys > end) {
      barrier_wait(barriers.full_values, 0);
      clear_values(0, end - (count - 1) * kKeys);
    }
    if (group == 1 && count > 1) give_turn(group);
    Cursor<kKeyStages> keys;
    Cursor<kValueStages> values;
#pragma unroll 1
    for (int n = 1; n < count; ++n) {
      keys.advance();
      barrier_wait(barriers.full_keys + keys.stage, keys.parity);
      wait_turn(group);
      issue_scores(keys.stage);
      barrier_wait(barriers.full_values + values.stage, values.parity);
      issue_values(values.stage);
      if (group == 0 || n + 1 < count) give_turn(group);
      products_done<1>(scores);
      leave(barriers.empty_keys + keys.stage);
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
        reinterpret_cast<uint32_t*>(query_piece(row, m))[lane % 4] =
            pack_pair(T(), out[4 * m + 2 * i] * inverse, out[4 * m + 2 * i + 1] * inverse);
      }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * kPieces; i += kWarpSize) {
      const int row = 16 * warp + i / kPieces;
      if (first_row + row >= num_rows) break;
      T* at = to.data + offset_of(first_row + row, to.stride) + i % kPieces * 8;
      *reinterpret_cast<uint4*>(at) = *query_piece(row, i % kPieces);
    }
  }
};

// What a block works on. Items stand with the longest first, which begin first: those of some heads next to
// each other, so that at the end little is left for a few, but of no more heads than L2 has room for.
struct Work {
  int item;
  int kv_head;
  __device__ explicit Work(const PagedAttentionArgs& args) {
    const int at = static_cast<int>(blockIdx.x);
    const int items = static_cast<int>(args.plan.num_prompt);
    const int first_head = at / (items * args.plan.prompt_heads) * args.plan.prompt_heads;
    const int heads = min(args.plan.prompt_heads, args.num_kv_heads - first_head);
    const int rest = at - first_head * items;
    item = rest / heads;
    kv_head = first_head + rest % heads;
  }
};

// Grid: prompt items · kv heads.
template <typename T, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1) attend_prompts(const __grid_constant__ CUtensorMap k_map,
                                                              const __grid_constant__ CUtensorMap v_map,
                                                              const __grid_constant__ PagedAttentionArgs args,
                                                              KeyPages pages,
                                                              RowView<const T> queries,
                                                              RowView<T> out) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ Barriers barriers;
  const Work work(args);
  const PromptItem item = args.plan.prompt[work.item];
  if (item.sequence < 0) return;
  const Memory<kHeadDim> memory{raw + (1024 - shared_address(raw) % 1024) % 1024};
  if (threadIdx.x == 0) {
    constexpr int kReaders = kMultipliers * kGroupThreads / kWarpSize;
    for (uint64_t& barrier : barriers.full_keys) barrier_init(&barrier, 1);
    for (uint64_t& barrier : barriers.full_values) barrier_init(&barrier, 1);
    for (uint64_t& barrier : barriers.empty_keys) barrier_init(&barrier, kReaders);
    for (uint64_t& barrier : barriers.empty_values) barrier_init(&barrier, kReaders);
    barrier_init_done();
  }
  __syncthreads();
  const int num_rows = item.num_queries * args.group;
  const int last_row = min(num_rows, item.first_row + kHopperPromptRows) - 1;
  const int end = item.context - item.num_queries + last_row / args.group + 1;
  // The same in all lanes, and the compiler is to know it: products are issued by whole warps.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kMultipliers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopierRegisters));
    if (static_cast<int>(threadIdx.x) < kMultipliers * kGroupThreads + kWarpSize)
      bring_tiles<kHeadDim>(k_map, v_map, args, pages, item.sequence, work.kv_head, end, memory, barriers);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
  PromptRows<T, kHeadDim> rows(args, item, memory, barriers, work.kv_head, group);
  rows.load_queries(queries);
  rows.run(end);
  rows.finish(out);
#endif
}

}  // namespace

HopperPrompts HopperPrompts::make(AttentionKernels which) {
  HopperPrompts made;
  int device = 0;
  int major = 0;
  int minor = 0;
  if (which == AttentionKernels::kPortable || !kCompiled || cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
    return made;
  made.supported_ = major == 9 && minor == 0 && made.encoder_.find() == cudaSuccess;
  return made;
}

template <typename T, int kHeadDim>
cudaError_t HopperPrompts::launch(const PagedAttentionArgs& args,
                                  const AttentionParams& params,
                                  cudaStream_t stream) const {
  const Tensor& cache = params.k_cache;
  constexpr int64_t kEightKeys = 8 * kHeadDim;
  CHECK(cache.stride(0) % kEightKeys == 0 && cache.stride(1) % kEightKeys == 0,
        "KV cache {}",
        cache.to_string());
  KeyPages pages{.keys = 16,
                 .block_stride = static_cast<int>(cache.stride(0) / kEightKeys),
                 .head_stride = static_cast<int>(cache.stride(1) / kEightKeys)};
  while (pages.keys < kKeys && args.block_size % (2 * pages.keys) == 0) pages.keys *= 2;
  auto map_of = [&](const Tensor& keys, CUtensorMap& map) {
    return encoder_.encode(
        {.dtype = keys.dtype,
         .data = keys.data,
         .dimensions = 4,
         .sizes =
             {64, 8, kHeadDim / 64, (keys.dim(0) - 1) * pages.block_stride + keys.dim(1) * pages.head_stride},
         .strides = {kHeadDim, 64, kEightKeys},
         .box = {64, 8, kHeadDim / 64, pages.keys / 8}},
        map);
  };
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = map_of(params.k_cache, k_map);
  if (error == cudaSuccess) error = map_of(params.v_cache, v_map);
  constexpr int kBytes = Memory<kHeadDim>::kBytes + 1024;
  auto* kernel = attend_prompts<T, kHeadDim>;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(args.plan.num_prompt * args.num_kv_heads));
  kernel<<<grid, kThreads, kBytes, stream>>>(
      k_map, v_map, args, pages, rows_as<const T>(params.q), rows_as<T>(params.out));
  return cudaGetLastError();
}

template cudaError_t HopperPrompts::launch<__nv_bfloat16, 64>(const PagedAttentionArgs&,
                                                              const AttentionParams&,
                                                              cudaStream_t) const;
template cudaError_t HopperPrompts::launch<__nv_bfloat16, 128>(const PagedAttentionArgs&,
                                                               const AttentionParams&,
                                                               cudaStream_t) const;
template cudaError_t HopperPrompts::launch<__half, 64>(const PagedAttentionArgs&,
                                                       const AttentionParams&,
                                                       cudaStream_t) const;
template cudaError_t HopperPrompts::launch<__half, 128>(const PagedAttentionArgs&,
                                                        const AttentionParams&,
                                                        cudaStream_t) const;

}  // namespace llm_dist::kernels
