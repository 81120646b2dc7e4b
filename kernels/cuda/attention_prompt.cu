// Causal attention of prompts over a paged cache, on tensor cores (Dao 2023, "FlashAttention-2"). A block has
// kPromptRows rows of one kv head's group and walks along the keys that its last row sees, a tile at a time
// through shared memory: the next tile is on its way while one is worked on. Each warp keeps the online
// softmax of rows of its own in registers.
#include <type_traits>

#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/tiles.cuh"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kWarpRows = kPromptRows / kWarps;
constexpr int kRowTiles = kWarpRows / 16;  // products of 16 rows
constexpr int kKeys = 64;                  // of a tile
constexpr int kPageKeys = 16;              // consecutive keys that lie in one block of the cache
static_assert(kRowTiles * 16 * kWarps == kPromptRows);

template <int kHeadDim>
struct Tiles {
  static constexpr int kPieces = kHeadDim / 8;  // 16 bytes each, of a row
  uint4 q[kPromptRows * kPieces];
  uint4 k[2][kKeys * kPieces];
  uint4 v[2][kKeys * kPieces];
};

template <typename T, typename Kv, int kHeadDim>
struct PromptBlock {
  static constexpr bool kF8 = !std::is_same_v<T, Kv>;
  static constexpr int kPieces = Tiles<kHeadDim>::kPieces;
  static constexpr int kPages = kKeys / kPageKeys;
  static constexpr int kEach = kPageKeys * kPieces / kThreads;  // pieces of a page that a thread brings
  static_assert(kEach * kThreads == kPageKeys * kPieces);

  const PagedAttentionArgs& args;
  Tiles<kHeadDim>& tiles;
  AttentionRows rows;
  int kv_head;
  int first_row;  // of the block
  int warp_row;   // of this warp, from the block's first
  int lane;

  float out[kRowTiles][kPieces][4];
  float scores[kRowTiles][kKeys / 8][4];
  float max[kRowTiles][2];  // of rows g and g + 8
  float sum[kRowTiles][2];  // of this thread's keys only, until finish()
  int visible[kRowTiles][2];
  uint2 k_codes[kPages][kEach];  // f8_e4m3: of the tile that is on its way
  uint2 v_codes[kPages][kEach];

  __device__ PromptBlock(const PagedAttentionArgs& arguments, Tiles<kHeadDim>& shared, const PromptItem& item)
      : args(arguments),
        tiles(shared),
        rows{item.sequence,
             item.query_start,
             item.num_queries * arguments.group,
             item.context,
             item.num_queries},
        kv_head(static_cast<int>(blockIdx.y)),
        first_row(item.first_row),
        warp_row(static_cast<int>(threadIdx.x) / kWarpSize * kWarpRows),
        lane(static_cast<int>(threadIdx.x) % kWarpSize) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = first_row + warp_row + 16 * t + 8 * i + lane / 4;
        visible[t][i] = row < rows.num_rows ? rows.visible(row, args.group) : 0;
        max[t][i] = -INFINITY;
        sum[t][i] = 0;
      }
#pragma unroll
      for (int m = 0; m < kPieces; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[t][m][i] = 0;
      }
    }
  }

  // Keys that any of `count` rows from `row` on sees; 0 where there is none of them.
  __device__ int keys_of(int row, int count) const {
    return row < rows.num_rows ? rows.visible(min(rows.num_rows, row + count) - 1, args.group) : 0;
  }

  // Where a row of the sequence begins among rows of tokens that are `stride` elements apart.
  __device__ int64_t offset_of(int row, int64_t stride) const {
    return (rows.query_start + row / args.group) * stride +
           (kv_head * args.group + row % args.group) * kHeadDim;
  }

  __device__ void load_queries(RowView<const T> queries) {
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < kPromptRows * kPieces; i += kThreads) {
      const int row = i / kPieces;
      const bool there = first_row + row < rows.num_rows;
      const T* from = queries.data + offset_of(there ? first_row + row : first_row, queries.stride);
      copy_async(&tiles.q[tile_index<kPieces>(row, i % kPieces)], from + i % kPieces * 8, there);
    }
  }

  // Where the i-th piece that this thread brings of a page stands in its tile.
  __device__ static int place_of(int page, int i) {
    const int piece = i * kThreads + static_cast<int>(threadIdx.x);
    return tile_index<kPieces>(page * kPageKeys + piece / kPieces, piece % kPieces);
  }

  // Sends for a tile: for elements to shared memory, for codes to registers, from where place_codes() takes
  // them. Keys from `end` on are zeros there: others left them, and a weight of zero does not silence a NaN.
  __device__ void load_keys(int stage, int first_key, int end, const Kv* k_cache, const Kv* v_cache) {
    const int32_t* table = args.block_tables + rows.sequence * args.table_stride;
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
      const int page_key = first_key + page * kPageKeys;
      const bool any = page_key < end;
      const int64_t block = any ? table[page_key / args.block_size] : 0;
      const int64_t base = block * args.block_stride + kv_head * args.head_stride +
                           static_cast<int64_t>(any ? page_key % args.block_size : 0) * kHeadDim;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int piece = i * kThreads + static_cast<int>(threadIdx.x);
        const int64_t from = base + (any ? piece * 8 : 0);
        if constexpr (kF8) {
          k_codes[page][i] = *reinterpret_cast<const uint2*>(k_cache + from);
          v_codes[page][i] = *reinterpret_cast<const uint2*>(v_cache + from);
        } else {
          const bool there = page_key + piece / kPieces < end;
          const int to = place_of(page, i);
          copy_async(&tiles.k[stage][to], k_cache + from, there);
          copy_async(&tiles.v[stage][to], v_cache + from, there);
        }
      }
    }
  }

  // The tile that load_keys() sent for, widened; behind the work on the one before, so that codes that are on
  // their way hold nothing up.
  __device__ void place_codes(int stage, int first_key, int end) {
    auto widened = [](uint2 codes, bool there) {
      if (!there) codes = {};
      return uint4{widen_pair<0>(T(), codes.x),
                   widen_pair<1>(T(), codes.x),
                   widen_pair<0>(T(), codes.y),
                   widen_pair<1>(T(), codes.y)};
    };
#pragma unroll
    for (int page = 0; page < kPages; ++page) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int row = page * kPageKeys + (i * kThreads + static_cast<int>(threadIdx.x)) / kPieces;
        const bool there = first_key + row < end;
        const int to = place_of(page, i);
        tiles.k[stage][to] = widened(k_codes[page][i], there);
        tiles.v[stage][to] = widened(v_codes[page][i], there);
      }
    }
  }

  __device__ void score_keys(int stage) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
      }
    }
#pragma unroll
    for (int c = 0; c < kHeadDim / 16; ++c) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        load_matrices(a[t], &tiles.q[tile_index<kPieces>(warp_row + 16 * t + lane % 16, 2 * c + lane / 16)]);
      }
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        load_matrices(
            b, &tiles.k[stage][tile_index<kPieces>(16 * n + lane / 16 * 8 + lane % 8, 2 * c + lane / 8 % 2)]);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_16x8x16(T(), scores[t][2 * n], a[t][0], a[t][1], a[t][2], a[t][3], b[0], b[1]);
          mma_16x8x16(T(), scores[t][2 * n + 1], a[t][0], a[t][1], a[t][2], a[t][3], b[2], b[3]);
        }
      }
    }
  }

  __device__ void hide_keys(int first_key) {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = first_key + 8 * n + lane % 4 * 2 + i % 2;
          if (key >= visible[t][i / 2]) scores[t][n][i] = -INFINITY;
        }
      }
    }
  }

  // Scores to weights; what was added up so far to the new maximum.
  __device__ void weigh() {
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float best = max[t][i];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
          best = fmaxf(best, fmaxf(scores[t][n][2 * i], scores[t][n][2 * i + 1]));
        }
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
        // Nothing seen so far: the exponents would be of infinity minus infinity.
        const float base = best == -INFINITY ? 0.0f : best * args.scale;
        const float rescale = exp2_approx(max[t][i] * args.scale - base);
        max[t][i] = best;
        float added = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
          for (int j = 2 * i; j < 2 * i + 2; ++j) {
            scores[t][n][j] = exp2_approx(scores[t][n][j] * args.scale - base);
            added += scores[t][n][j];
          }
        }
        sum[t][i] = sum[t][i] * rescale + added;
#pragma unroll
        for (int m = 0; m < kPieces; ++m) {
          out[t][m][2 * i] *= rescale;
          out[t][m][2 * i + 1] *= rescale;
        }
      }
    }
  }

  __device__ void add_values(int stage) {
#pragma unroll
    for (int s = 0; s < kKeys / 16; ++s) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int t = 0; t < kRowTiles; ++t) {
        a[t][0] = pack_pair(T(), scores[t][2 * s][0], scores[t][2 * s][1]);
        a[t][1] = pack_pair(T(), scores[t][2 * s][2], scores[t][2 * s][3]);
        a[t][2] = pack_pair(T(), scores[t][2 * s + 1][0], scores[t][2 * s + 1][1]);
        a[t][3] = pack_pair(T(), scores[t][2 * s + 1][2], scores[t][2 * s + 1][3]);
      }
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t b[4];
        load_matrices_transposed(b,
                                 &tiles.v[stage][tile_index<kPieces>(16 * s + lane % 16, 2 * d + lane / 16)]);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
          mma_16x8x16(T(), out[t][2 * d], a[t][0], a[t][1], a[t][2], a[t][3], b[0], b[1]);
          mma_16x8x16(T(), out[t][2 * d + 1], a[t][0], a[t][1], a[t][2], a[t][3], b[2], b[3]);
        }
      }
    }
  }

  // The tile's keys from `first_key` on. Every row of this warp sees the first `sure` keys of the context.
  __device__ void take(int stage, int first_key, int sure) {
    score_keys(stage);
    if (first_key + kKeys > sure) hide_keys(first_key);
    weigh();
    add_values(stage);
  }

  // Through this warp's rows of the query tile, which it alone has read, so that each store is of 16 bytes.
  __device__ void finish(RowView<T> to) {
    auto* words = reinterpret_cast<uint32_t*>(tiles.q);
    __syncwarp();
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sum[t][i] += __shfl_xor_sync(0xffffffffu, sum[t][i], 1);
        sum[t][i] += __shfl_xor_sync(0xffffffffu, sum[t][i], 2);
        const float inverse = sum[t][i] > 0 ? 1.0f / sum[t][i] : 0.0f;
        const int row = warp_row + 16 * t + 8 * i + lane / 4;
#pragma unroll
        for (int m = 0; m < kPieces; ++m) {
          words[tile_index<kPieces>(row, m) * 4 + lane % 4] =
              pack_pair(T(), out[t][m][2 * i] * inverse, out[t][m][2 * i + 1] * inverse);
        }
      }
    }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < kWarpRows * kPieces; i += kWarpSize) {
      const int row = warp_row + i / kPieces;
      if (first_row + row >= rows.num_rows) break;
      T* at = to.data + offset_of(first_row + row, to.stride) + i % kPieces * 8;
      *reinterpret_cast<uint4*>(at) = tiles.q[tile_index<kPieces>(row, i % kPieces)];
    }
  }
};

// Grid: prompt items × kv heads.
template <typename T, typename Kv, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 2) attend_prompts(
    PagedAttentionArgs args, RowView<const T> queries, const Kv* k_cache, const Kv* v_cache, RowView<T> out) {
  extern __shared__ uint4 shared[];
  const PromptItem item = args.plan.prompt[blockIdx.x];
  PromptBlock<T, Kv, kHeadDim> block(args, *reinterpret_cast<Tiles<kHeadDim>*>(shared), item);
  const int end = block.keys_of(block.first_row, kPromptRows);
  const int warp_first = block.first_row + block.warp_row;
  const int warp_end = block.keys_of(warp_first, kWarpRows);
  const int sure = block.keys_of(warp_first, 1);
  block.load_queries(queries);
  block.load_keys(0, 0, end, k_cache, v_cache);
  if constexpr (block.kF8) block.place_codes(0, 0, end);
  int stage = 0;
#pragma unroll 1
  for (int key = 0; key < end; key += kKeys) {
    wait_for_copies();
    __syncthreads();  // the tile is whole, and nobody reads the one before it any more
    const bool more = key + kKeys < end;
    if (more) block.load_keys(stage ^ 1, key + kKeys, end, k_cache, v_cache);
    if (key < warp_end) block.take(stage, key, sure);
    if constexpr (block.kF8) {
      if (more) block.place_codes(stage ^ 1, key + kKeys, end);
    }
    stage ^= 1;
  }
  block.finish(out);
}

}  // namespace

template <typename T, typename Kv, int kHeadDim>
void launch_attend_prompts(const PagedAttentionArgs& args,
                           RowView<const T> queries,
                           const Kv* k_cache,
                           const Kv* v_cache,
                           RowView<T> out,
                           cudaStream_t stream) {
  constexpr int kBytes = sizeof(Tiles<kHeadDim>);
  auto* kernel = attend_prompts<T, Kv, kHeadDim>;
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const dim3 grid(static_cast<unsigned>(args.plan.num_prompt), static_cast<unsigned>(args.num_kv_heads));
  kernel<<<grid, kThreads, kBytes, stream>>>(args, queries, k_cache, v_cache, out);
}

#define LLM_DIST_LAUNCH_ATTEND_PROMPTS(T, Kv, head_dim) \
  template void launch_attend_prompts<T, Kv, head_dim>( \
      const PagedAttentionArgs&, RowView<const T>, const Kv*, const Kv*, RowView<T>, cudaStream_t);
#define LLM_DIST_LAUNCH_ATTEND_PROMPTS_OF(T)           \
  LLM_DIST_LAUNCH_ATTEND_PROMPTS(T, T, 64)             \
  LLM_DIST_LAUNCH_ATTEND_PROMPTS(T, T, 128)            \
  LLM_DIST_LAUNCH_ATTEND_PROMPTS(T, __nv_fp8_e4m3, 64) \
  LLM_DIST_LAUNCH_ATTEND_PROMPTS(T, __nv_fp8_e4m3, 128)
LLM_DIST_LAUNCH_ATTEND_PROMPTS_OF(__nv_bfloat16)
LLM_DIST_LAUNCH_ATTEND_PROMPTS_OF(__half)
#undef LLM_DIST_LAUNCH_ATTEND_PROMPTS_OF
#undef LLM_DIST_LAUNCH_ATTEND_PROMPTS

}  // namespace llm_dist::kernels
