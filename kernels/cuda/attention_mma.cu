// Causal paged attention of decodes on tensor cores, transposed: keys, then dimensions of V, are the 16 rows
// of each product, queries its 8 columns, so that a decode of a few query heads wastes little. K and V go
// from the cache to registers in 16-byte loads, without shared memory: dimensions may enter a product in any
// order that Q follows too, and pairs of V's rows are interleaved in registers. One warp keeps an online
// softmax of kTiles · 8 rows. A cache of f8_e4m3 codes is widened on its way to the products.
#include <algorithm>

#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/merge_softmaxes.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/hopper_prompts.h"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = kDecodeWarps * kWarpSize;
constexpr int kBytesForTwo = 80 << 10;  // of shared memory: so much leaves a processor place for two blocks
// What a thread that merges loads at a time: from memory, and of a block's warps, which two threads mostly
// share.
constexpr int kSharesAtOnce = 8;
constexpr int kWarpsAtOnce = kDecodeWarps / 2;

// The block table's entries along a warp's rounds, one ahead, since an address has to wait for its entry.
template <typename Kv, int kHeadDim>
struct Pages {
  const Kv* k;
  const Kv* v;
  const int32_t* table;
  int block_size;
  int64_t block_stride;

  __device__ Pages(
      const PagedAttentionArgs& args, const Kv* k_cache, const Kv* v_cache, int sequence, int kv_head)
      : k(k_cache + kv_head * args.head_stride),
        v(v_cache + kv_head * args.head_stride),
        table(args.block_tables + sequence * args.table_stride),
        block_size(args.block_size),
        block_stride(args.block_stride) {}
  __device__ int block_of(int key) const { return table[key / block_size]; }
  __device__ int64_t offset(int block, int key) const {
    return block * block_stride + static_cast<int64_t>(key % block_size) * kHeadDim;
  }
};

// Four words from 16 bytes.
template <int kCount>
__device__ inline void load_words(const void* from, uint32_t (&to)[kCount], int at) {
  const uint4 words = *static_cast<const uint4*>(from);
  to[at] = words.x;
  to[at + 1] = words.y;
  to[at + 2] = words.z;
  to[at + 3] = words.w;
}

// Kv: T, or codes of f8_e4m3. With g = lane / 4 and c = lane % 4, a thread has a quarter of the dimensions of
// K's keys g and g + 8, in runs of 16 bytes, and an eighth of those of V's keys 2c, 2c + 1, 2c + 8 and 2c
// + 9.
template <typename T, typename Kv, int kHeadDim, int kTiles>
struct Softmax {
  static constexpr bool kF8 = !std::is_same_v<T, Kv>;
  static constexpr int kProducts = kHeadDim / 16;  // of a round, for the scores and for the sums
  static constexpr int kPieces = kHeadDim / 64;    // of eight dimensions of a row's result
  static constexpr int kRun = 16 / sizeof(Kv);     // dimensions
  static constexpr int kKeyWords = kHeadDim / 4 * sizeof(Kv) / 4;
  static constexpr int kValueWords = kHeadDim / 8 * sizeof(Kv) / 4;

  uint32_t q[kTiles][2 * kProducts];  // in the order of K's dimensions
  uint32_t k_low[kKeyWords];
  uint32_t k_high[kKeyWords];
  uint32_t v_rows[4][kValueWords];
  float out[kTiles][kProducts][4];
  float max[kTiles][2];
  float sum[kTiles][2];    // of this thread's keys only, until finish()
  int visible[kTiles][2];  // keys that rows 2c and 2c + 1 of a tile may see

  // first_row: of the warp, among the sequence's rows; rows past its last see nothing.
  __device__ void start(const PagedAttentionArgs& args,
                        RowView<const T> queries,
                        const AttentionRows& rows,
                        int kv_head,
                        int first_row) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const int row = first_row + 8 * t + lane / 4;
#pragma unroll
      for (uint32_t& word : q[t]) word = 0;
      if (row < rows.num_rows) {
        const T* from = queries.row(rows.query_start + row / args.group) +
                        (kv_head * args.group + row % args.group) * kHeadDim;
#pragma unroll
        for (int i = 0; i < kProducts / 2; ++i) {
          constexpr int kLoads = kRun / 8;  // of a run
          load_words(from + i / kLoads * 4 * kRun + lane % 4 * kRun + i % kLoads * 8, q[t], 4 * i);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = first_row + 8 * t + lane % 4 * 2 + i;
        visible[t][i] = column < rows.num_rows ? rows.visible(column, args.group) : 0;
        max[t][i] = -INFINITY;
        sum[t][i] = 0;
      }
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[t][m][i] = 0;
      }
    }
  }

  __device__ void load_k(const Kv* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const Kv* from = at + lane / 4 * kHeadDim + lane % 4 * kRun;
#pragma unroll
    for (int i = 0; i < kKeyWords / 4; ++i) {
      load_words(from + i * 4 * kRun, k_low, 4 * i);
      load_words(from + 8 * kHeadDim + i * 4 * kRun, k_high, 4 * i);
    }
  }
  __device__ void load_v(const Kv* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Kv* from = at + (2 * (lane % 4) + r % 2 + r / 2 * 8) * kHeadDim;
      if constexpr (kValueWords == 2) {
        const uint2 words = *reinterpret_cast<const uint2*>(from + lane / 4 * 8);
        v_rows[r][0] = words.x;
        v_rows[r][1] = words.y;
      } else {
#pragma unroll
        for (int i = 0; i < kValueWords / 4; ++i)
          load_words(from + i * 8 * kRun + lane / 4 * kRun, v_rows[r], 4 * i);
      }
    }
  }
  // Keys from `context` on were left by others and may hold anything: a weight of zero does not silence a
  // NaN.
  __device__ void clear_v(int key, int context) {
    const int first = key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r % 2 + r / 2 * 8 < context) continue;
#pragma unroll
      for (uint32_t& word : v_rows[r]) word = 0;
    }
  }

  // The m-th pair of elements of a thread's words.
  template <int kCount>
  __device__ static uint32_t pair_of(const uint32_t (&words)[kCount], int m) {
    if constexpr (!kF8) return words[m];
    return m % 2 == 0 ? widen_pair<0>(T(), words[m / 2]) : widen_pair<1>(T(), words[m / 2]);
  }
  // The i-th elements of two rows of a thread's words.
  template <int kCount>
  __device__ static uint32_t column_of(const uint32_t (&a)[kCount], const uint32_t (&b)[kCount], int i) {
    if constexpr (kF8) return widen_column(T(), a[i / 4], b[i / 4], i % 4);
    return __byte_perm(a[i / 2], b[i / 2], i % 2 == 0 ? 0x5410 : 0x7632);
  }
  // The place of the eight dimensions that `out` has from product 4 h on, among the pieces of a row.
  __device__ static int piece_of(int h) {
    const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
    return kF8 ? g * kPieces + h : h * 8 + g;
  }

  __device__ void score_keys(float (&scores)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) scores[t][0] = scores[t][1] = scores[t][2] = scores[t][3] = 0;
#pragma unroll
    for (int p = 0; p < kProducts; ++p) {
      const uint32_t a0 = pair_of(k_low, 2 * p);
      const uint32_t a1 = pair_of(k_high, 2 * p);
      const uint32_t a2 = pair_of(k_low, 2 * p + 1);
      const uint32_t a3 = pair_of(k_high, 2 * p + 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        mma_16x8x16(T(), scores[t], a0, a1, a2, a3, q[t][2 * p], q[t][2 * p + 1]);
    }
  }

  __device__ void add_values(const uint32_t (&weights)[kTiles][2]) {
#pragma unroll
    for (int m = 0; m < kProducts; ++m) {
      const uint32_t a0 = column_of(v_rows[0], v_rows[1], 2 * m);
      const uint32_t a1 = column_of(v_rows[0], v_rows[1], 2 * m + 1);
      const uint32_t a2 = column_of(v_rows[2], v_rows[3], 2 * m);
      const uint32_t a3 = column_of(v_rows[2], v_rows[3], 2 * m + 1);
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        mma_16x8x16(T(), out[t][m], a0, a1, a2, a3, weights[t][0], weights[t][1]);
    }
  }

  // Scores of keys `key` and `key + 8` of this thread's two rows to weights, as the right side of a product.
  __device__ void weigh(int t, float (&score)[4], int key, float scale, uint32_t (&weight)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      score[i] = key < visible[t][i] ? score[i] * scale : -INFINITY;
      score[2 + i] = key + 8 < visible[t][i] ? score[2 + i] * scale : -INFINITY;
      float best = fmaxf(max[t][i], fmaxf(score[i], score[2 + i]));
#pragma unroll
      for (int distance = 4; distance < kWarpSize; distance *= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, distance));
      }
      // Nothing seen so far: the exponents would be of infinity minus infinity.
      const float base = best == -INFINITY ? 0.0f : best;
      const float rescale = exp2f(max[t][i] - base);
      max[t][i] = best;
      score[i] = exp2f(score[i] - base);
      score[2 + i] = exp2f(score[2 + i] - base);
      sum[t][i] = sum[t][i] * rescale + score[i] + score[2 + i];
      if (!__any_sync(0xffffffffu, rescale != 1.0f)) continue;  // the rule behind the first keys
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        out[t][m][i] *= rescale;
        out[t][m][2 + i] *= rescale;
      }
    }
    weight[0] = transpose_8x8(pack_pair(T(), score[0], score[1]));
    weight[1] = transpose_8x8(pack_pair(T(), score[2], score[3]));
  }

  __device__ void load_round(const Pages<Kv, kHeadDim>& pages, int first) {
    const int64_t at = pages.offset(pages.block_of(first), first);
    load_k(pages.k + at);
    load_v(pages.v + at);
  }

  // Rounds of this warp: keys first, first + stride, … below end; the first round is loaded. The next round's
  // K is on its way while this one's weights are worked out, its V while the next scores are.
  __device__ void run(
      const Pages<Kv, kHeadDim>& pages, int first, int end, int stride, int context, float scale) {
    if (first >= end) return;
    int64_t at = 0;
    int block = first + stride < end ? pages.block_of(first + stride) : 0;
#pragma unroll 1
    for (int key = first; key < end; key += stride) {
      const bool more = key + stride < end;
      float scores[kTiles][4];
      score_keys(scores);
      if (more) {
        at = pages.offset(block, key + stride);
        load_k(pages.k + at);
        if (key + 2 * stride < end) block = pages.block_of(key + 2 * stride);
      }
      uint32_t weights[kTiles][2];
      const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) weigh(t, scores[t], key + g, scale, weights[t]);
      if (key + kDecodeKeys > context) clear_v(key, context);
      add_values(weights);
      if (more) load_v(pages.v + at);
    }
  }

  __device__ void finish() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int distance = 4; distance < kWarpSize; distance *= 2) {
          sum[t][i] += __shfl_xor_sync(0xffffffffu, sum[t][i], distance);
        }
      }
    }
  }

  // The eight dimensions of row 2c + i of tile t that stand at piece_of(h).
  __device__ void dims(int t, int i, int h, float (&values)[8]) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      values[2 * m] = out[t][h * 4 + m][i];
      values[2 * m + 1] = out[t][h * 4 + m][2 + i];
    }
  }
};

// A block's item. The warps of a block take its keys in turns and put their results into shared memory, where
// pieces of them are merged; the last block of a sequence's shares merges those.
template <typename T, typename Kv, int kHeadDim, int kTiles>
__device__ inline void attend_item(const PagedAttentionArgs& args,
                                   const DecodeItem& item,
                                   RowView<const T> queries,
                                   const Kv* k_cache,
                                   const Kv* v_cache,
                                   RowView<T> out) {
  constexpr int kPieces = kHeadDim / 8;  // of a row
  constexpr int kWidth = kHeadDim + 2;
  extern __shared__ float4 piece_memory[];
  float* results = reinterpret_cast<float*>(piece_memory);  // [kDecodeWarps, pieces, kPieceFloats]
  __shared__ int arrived;
  const int kv_head = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const AttentionRows rows{
      item.sequence, item.query_start, item.num_queries * args.group, item.context, item.num_queries};
  Softmax<T, Kv, kHeadDim, kTiles> softmax;
  const Pages<Kv, kHeadDim> pages(args, k_cache, v_cache, item.sequence, kv_head);
  const int first = item.begin + warp * kDecodeKeys;
  const bool older = first + kDecodeKeys <= item.context - item.num_queries;
  if (older && first < item.end) softmax.load_round(pages, first);
  // The weights that the next kernel asks for queue up behind these keys.
  let_next_start();
  if (args.beside_prompts) {
    __threadfence();  // what this multiprocessor still caches of the memory of q is the layer's before
  } else {
    wait_for_previous();
  }
  softmax.start(args, queries, rows, kv_head, 0);
  if (!older && first < item.end) softmax.load_round(pages, first);
  softmax.run(pages, first, item.end, kDecodeWarps * kDecodeKeys, rows.context, args.scale);
  softmax.finish();

  const int pieces = rows.num_rows * kPieces;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = 8 * t + lane % 4 * 2 + i;
      if (row >= rows.num_rows) continue;
#pragma unroll
      for (int h = 0; h < kHeadDim / 64; ++h) {
        float* to = results + (warp * pieces + row * kPieces + softmax.piece_of(h)) * kPieceFloats;
        float values[8];
        softmax.dims(t, i, h, values);
        auto* parts = reinterpret_cast<float4*>(to);
        parts[0] = make_float4(values[0], values[1], values[2], values[3]);
        parts[1] = make_float4(values[4], values[5], values[6], values[7]);
        *reinterpret_cast<float2*>(to + 8) = make_float2(softmax.max[t][i], softmax.sum[t][i]);
      }
    }
  }
  __syncthreads();

  auto write_out = [&](int piece, const Piece& merged) {
    const int row = piece / kPieces;
    const float inverse = merged.end.y > 0 ? 1.0f / merged.end.y : 0.0f;
    float values[8];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      values[2 * v] = merged.values[v].x * inverse;
      values[2 * v + 1] = merged.values[v].y * inverse;
    }
    store_vec<8>(values,
                 out.row(rows.query_start + row / args.group) +
                     (kv_head * args.group + row % args.group) * kHeadDim + piece % kPieces * 8);
  };
  const int64_t slot = static_cast<int64_t>(item.first_slot) * args.num_kv_heads + kv_head;
  const int64_t split_stride = static_cast<int64_t>(args.num_kv_heads) * args.plan.decode_rows * kWidth;
  float* first_partial = args.plan.partial + slot * args.plan.decode_rows * kWidth;
  auto partial_of = [&](int split, int piece) {
    return first_partial + split * split_stride + piece / kPieces * kWidth;
  };
  auto result_of = [&](int piece, int from, Piece& loaded) {
    const auto* at = reinterpret_cast<const float2*>(results + (from * pieces + piece) * kPieceFloats);
#pragma unroll
    for (int v = 0; v < 4; ++v) loaded.values[v] = at[v];
    loaded.end = at[4];
  };
  merge_block<kThreads, kWarpsAtOnce>(pieces, kDecodeWarps, result_of, [&](int piece, const Piece& merged) {
    if (item.num_splits == 1) return write_out(piece, merged);
    float* to = partial_of(item.split, piece);
    auto* values = reinterpret_cast<float2*>(to + piece % kPieces * 8);
#pragma unroll
    for (int v = 0; v < 4; ++v) values[v] = merged.values[v];
    if (piece % kPieces == 0) *reinterpret_cast<float2*>(to + kHeadDim) = merged.end;
  });
  if (item.num_splits == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) arrived = count_arrival(args.plan.finished + slot);
  __syncthreads();
  if (arrived != item.num_splits - 1) return;
  if (threadIdx.x == 0) args.plan.finished[slot] = 0;
  auto share_of = [&](int piece, int split, Piece& loaded) {
    const float* from = partial_of(split, piece);
    const auto* values = reinterpret_cast<const float2*>(from + piece % kPieces * 8);
#pragma unroll
    for (int v = 0; v < 4; ++v) loaded.values[v] = values[v];
    loaded.end = *reinterpret_cast<const float2*>(from + kHeadDim);
  };
  merge_block<kThreads, kSharesAtOnce>(pieces, item.num_splits, share_of, write_out);
}

// Grid: kv heads × decode items, so that blocks without work come last.
template <typename T, typename Kv, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? kDecodeResidents : 2) attend_decodes(
    PagedAttentionArgs args, RowView<const T> queries, const Kv* k_cache, const Kv* v_cache, RowView<T> out) {
  // The plan, the block table and what earlier steps left in the cache are older than the kernels at the
  // beginning of the step that wait for all in front of them: they are there before any wait of this one.
  const DecodeItem item = args.plan.decode[blockIdx.y];
  if (item.sequence >= 0) attend_item<T, Kv, kHeadDim, kTiles>(args, item, queries, k_cache, v_cache, out);
  // One block that waits is enough to order the kernels behind. Where few have work, the others keep places
  // of processors, so that those few spread; but not beside prompts.
  if (!args.beside_prompts || blockIdx.x + blockIdx.y == 0) wait_for_previous();
}

template <typename T, typename Kv, int kHeadDim, int kTiles>
void launch_decodes(const PagedAttentionArgs& args, const AttentionParams& params, cudaStream_t stream) {
  // Of a tile: eight rows, a piece for every eight dimensions.
  constexpr int kResults = kDecodeWarps * kTiles * kHeadDim * kPieceFloats * static_cast<int>(sizeof(float));
  auto* kernel = attend_decodes<T, Kv, kHeadDim, kTiles>;
  const OverlappedLaunch how{
      .grid = dim3(static_cast<unsigned>(args.num_kv_heads), static_cast<unsigned>(args.plan.num_decode)),
      .threads = kThreads,
      .stream = stream,
      .shared_bytes =
          args.plan.decode_residents < kDecodeResidents ? std::max(kResults, kBytesForTwo) : kResults,
      .early = args.beside_prompts || args.plan.decodes_early};
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, how.shared_bytes);
  (void)launch_overlapped(kernel,
                          how,
                          args,
                          rows_as<const T>(params.q),
                          static_cast<const Kv*>(params.k_cache.data),
                          static_cast<const Kv*>(params.v_cache.data),
                          rows_as<T>(params.out));
}

// Prompts of HopperPrompts come first and let decodes begin beside them.
template <typename T, typename Kv, int kHeadDim>
cudaError_t launch(const PagedAttentionArgs& args,
                   const AttentionParams& params,
                   const HopperPrompts& hopper,
                   cudaStream_t stream) {
  const AttentionPlan& plan = args.plan;
  PagedAttentionArgs of_decodes = args;
  of_decodes.beside_prompts = plan.num_prompt > 0 && plan.prompt_rows == kHopperPromptRows;
  if (of_decodes.beside_prompts) {
    const cudaError_t error = hopper.launch<T, Kv, kHeadDim>(args, params, stream);
    if (error != cudaSuccess) return error;
  }
  if (plan.num_decode > 0 && plan.decode_rows == 8)
    launch_decodes<T, Kv, kHeadDim, 1>(of_decodes, params, stream);
  if (plan.num_decode > 0 && plan.decode_rows > 8)
    launch_decodes<T, Kv, kHeadDim, 2>(of_decodes, params, stream);
  if (plan.num_prompt > 0 && !of_decodes.beside_prompts) {
    launch_attend_prompts<T, Kv, kHeadDim>(args,
                                           rows_as<const T>(params.q),
                                           static_cast<const Kv*>(params.k_cache.data),
                                           static_cast<const Kv*>(params.v_cache.data),
                                           rows_as<T>(params.out),
                                           stream);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t attention_tensor_cores(const AttentionPlan& plan,
                                   const AttentionParams& params,
                                   const HopperPrompts& hopper,
                                   cudaStream_t stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t num_sequences = params.context_lens.dim(0);
  CHECK(plan.num_sequences == num_sequences && plan.num_tokens == params.q.dim(0) &&
            plan.num_kv_heads == params.num_kv_heads,
        "attention over {} tokens of {} sequences, planned for {} and {}",
        params.q.dim(0),
        num_sequences,
        plan.num_tokens,
        plan.num_sequences);
  const PagedAttentionArgs args{.block_tables = params.block_tables.as<int32_t>(),
                                .table_stride = params.block_tables.stride(0),
                                .num_kv_heads = params.num_kv_heads,
                                .group = params.num_heads / params.num_kv_heads,
                                .block_size = static_cast<int>(params.k_cache.dim(2)),
                                .block_stride = params.k_cache.stride(0),
                                .head_stride = params.k_cache.stride(1),
                                .scale = params.scale * kLog2E,
                                .plan = plan};
  auto with_head_dim = [&](auto type) {
    using T = decltype(type);
    cudaError_t error = cudaSuccess;
    with_kv_type<T>(params.q.dtype, params.k_cache.dtype, [&](auto kv_type) {
      using Kv = decltype(kv_type);
      error = params.k_cache.dim(3) == 64 ? launch<T, Kv, 64>(args, params, hopper, stream)
                                          : launch<T, Kv, 128>(args, params, hopper, stream);
    });
    return error;
  };
  if (params.q.dtype == DType::kBF16) return with_head_dim(__nv_bfloat16{});
  return with_head_dim(__half{});
}

}  // namespace llm_dist::kernels
