// Causal paged attention of decodes on tensor cores, transposed: keys, then dimensions of V, are the 16 rows
// of each product, queries its 8 columns, so that a decode of a few query heads wastes little. K and V go
// from the cache to registers in 16-byte loads, without shared memory: dimensions may enter a product in any
// order that Q follows too, and pairs of V's rows are interleaved in registers. One warp keeps an online
// softmax of kTiles · 8 rows.
//
// A cache of f8_e4m3 codes is widened on its way to the products, to f16 whatever the activations are: there
// is an instruction for that alone. And a warp has twice as many keys at a time, so that as many bytes are on
// their way.
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

// Rows of q in f16 that are bf16 are multiplied by powers of two, so that nothing of them is out of range.
__device__ inline float factor_into_range(float largest) {
  constexpr uint32_t kLift = 127 + 7;
  const uint32_t exponent = __float_as_uint(largest) >> 23;
  return exponent == 255 ? 1.0f : __uint_as_float(min(kLift + 127 - exponent, 253u) << 23);
}

// Kv: T, or codes of f8_e4m3. A round has kGroups groups of 16 keys, between which the other warps have
// theirs. With g = lane / 4 and c = lane % 4, a thread has of each group a quarter of the dimensions of K's
// keys g and g + 8, in runs of 16 bytes, and an eighth of those of V's keys 2c, 2c + 1, 2c + 8 and 2c + 9.
template <typename T, typename Kv, int kHeadDim, int kTiles>
struct Softmax {
  static constexpr bool kF8 = !std::is_same_v<T, Kv>;
  using Element = std::conditional_t<kF8, __half, T>;  // of the products
  static constexpr bool kScalesQ = !std::is_same_v<Element, T>;
  static constexpr int kGroups = kF8 ? 2 : 1;
  static constexpr int kNoKey = 1 << 30;           // that of a group that is not there: nobody sees it
  static constexpr int kProducts = kHeadDim / 16;  // of a round, for the scores and for the sums
  static constexpr int kPieces = kHeadDim / 64;    // of eight dimensions of a row's result
  static constexpr int kRun = 16 / sizeof(Kv);     // dimensions
  static constexpr int kKeyWords = kHeadDim / 4 * sizeof(Kv) / 4;
  static constexpr int kValueWords = kHeadDim / 8 * sizeof(Kv) / 4;

  uint32_t q[kTiles][2 * kProducts];  // in the order of K's dimensions
  uint32_t k_low[kGroups][kKeyWords] = {};
  uint32_t k_high[kGroups][kKeyWords] = {};
  uint32_t v_rows[kGroups][4][kValueWords] = {};
  float out[kTiles][kProducts][4];
  float max[kTiles][2];
  float sum[kTiles][2];    // of this thread's keys only, until finish()
  int visible[kTiles][2];  // keys that rows 2c and 2c + 1 of a tile may see
  float of_q[kTiles][2];   // what their scores are to be multiplied with, where q has been scaled

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
      float inverse = 1;
      if constexpr (kScalesQ) inverse = 1 / scale_q(q[t]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = first_row + 8 * t + lane % 4 * 2 + i;
        visible[t][i] = column < rows.num_rows ? rows.visible(column, args.group) : 0;
        if constexpr (kScalesQ) of_q[t][i] = __shfl_sync(0xffffffffu, inverse, (lane % 4 * 2 + i) * 4);
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

  // A row's words to f16, times what this returns.
  __device__ __forceinline__ static float scale_q(uint32_t (&words)[2 * kProducts]) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 2 * kProducts; ++i) {
      const float2 pair = pair_of(T(), words[i]);
      largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    const float factor = factor_into_range(largest);
#pragma unroll
    for (int i = 0; i < 2 * kProducts; ++i) {
      const float2 pair = pair_of(T(), words[i]);
      words[i] = pack_pair(Element(), pair.x * factor, pair.y * factor);
    }
    return factor;
  }

  __device__ void load_k(int group, const Kv* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const Kv* from = at + lane / 4 * kHeadDim + lane % 4 * kRun;
#pragma unroll
    for (int i = 0; i < kKeyWords / 4; ++i) {
      load_words(from + i * 4 * kRun, k_low[group], 4 * i);
      load_words(from + 8 * kHeadDim + i * 4 * kRun, k_high[group], 4 * i);
    }
  }
  __device__ void load_v(int group, const Kv* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const Kv* from = at + (2 * (lane % 4) + r % 2 + r / 2 * 8) * kHeadDim;
      if constexpr (kValueWords == 2) {
        const uint2 words = *reinterpret_cast<const uint2*>(from + lane / 4 * 8);
        v_rows[group][r][0] = words.x;
        v_rows[group][r][1] = words.y;
      } else {
#pragma unroll
        for (int i = 0; i < kValueWords / 4; ++i)
          load_words(from + i * 8 * kRun + lane / 4 * kRun, v_rows[group][r], 4 * i);
      }
    }
  }
  // Keys from `context` on were left by others and may hold anything, and where a group is not there,
  // registers do: a weight of zero does not silence a NaN.
  __device__ void clear_v(int group, int key, int context) {
    const int first = key + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r % 2 + r / 2 * 8 < context) continue;
#pragma unroll
      for (uint32_t& word : v_rows[group][r]) word = 0;
    }
  }

  // Elements 4 m to 4 m + 3 of a thread's words, in pairs.
  template <int kCount>
  __device__ static uint2 pairs_of(const uint32_t (&words)[kCount], int m) {
    if constexpr (kF8) {
      return widen_four(Element(), words[m]);
    } else {
      return {words[2 * m], words[2 * m + 1]};
    }
  }
  // Elements 2 m of two rows of a thread's words as a pair, then elements 2 m + 1.
  template <int kCount>
  __device__ static uint2 columns_of(const uint32_t (&a)[kCount], const uint32_t (&b)[kCount], int m) {
    if constexpr (kF8) {
      return widen_four(Element(), __byte_perm(a[m / 2], b[m / 2], m % 2 == 0 ? 0x5140 : 0x7362));
    } else {
      return {__byte_perm(a[m], b[m], 0x5410), __byte_perm(a[m], b[m], 0x7632)};
    }
  }
  // The place of the eight dimensions that `out` has from product 4 h on, among the pieces of a row.
  __device__ static int piece_of(int h) {
    const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
    return kF8 ? g * kPieces + h : h * 8 + g;
  }

  __device__ void score_keys(float (&scores)[kTiles][kGroups][4]) const {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (float& score : scores[t][j]) score = 0;
      }
#pragma unroll
      for (int p = 0; p < kProducts; ++p) {
        const uint2 low = pairs_of(k_low[j], p);
        const uint2 high = pairs_of(k_high[j], p);
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          mma_16x8x16(Element(), scores[t][j], low.x, high.x, low.y, high.y, q[t][2 * p], q[t][2 * p + 1]);
      }
    }
  }

  __device__ void add_values(const uint32_t (&weights)[kTiles][kGroups][2]) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const auto& rows = v_rows[j];
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        const uint2 low = columns_of(rows[0], rows[1], m);
        const uint2 high = columns_of(rows[2], rows[3], m);
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
          mma_16x8x16(Element(), out[t][m], low.x, low.y, high.x, high.y, weights[t][j][0], weights[t][j][1]);
      }
    }
  }

  // Scores of this thread's keys of two rows to weights, as the right side of products. keys: of each group
  // the first one of this thread, the second is eight behind it.
  __device__ void weigh(int t,
                        float (&score)[kGroups][4],
                        const int (&keys)[kGroups],
                        float scale,
                        uint32_t (&weight)[kGroups][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float factor = kScalesQ ? scale * of_q[t][i] : scale;
      float best = max[t][i];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        score[j][i] = keys[j] < visible[t][i] ? score[j][i] * factor : -INFINITY;
        score[j][2 + i] = keys[j] + 8 < visible[t][i] ? score[j][2 + i] * factor : -INFINITY;
        best = fmaxf(best, fmaxf(score[j][i], score[j][2 + i]));
      }
#pragma unroll
      for (int distance = 4; distance < kWarpSize; distance *= 2) {
        best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, distance));
      }
      // Nothing seen so far: the exponents would be of infinity minus infinity.
      const float base = best == -INFINITY ? 0.0f : best;
      const float rescale = exp2f(max[t][i] - base);
      max[t][i] = best;
      sum[t][i] *= rescale;
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        score[j][i] = exp2f(score[j][i] - base);
        score[j][2 + i] = exp2f(score[j][2 + i] - base);
        sum[t][i] += score[j][i] + score[j][2 + i];
      }
      if (!__any_sync(0xffffffffu, rescale != 1.0f)) continue;  // the rule behind the first keys
#pragma unroll
      for (int m = 0; m < kProducts; ++m) {
        out[t][m][i] *= rescale;
        out[t][m][2 + i] *= rescale;
      }
    }
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      weight[j][0] = transpose_8x8(pack_pair(Element(), score[j][0], score[j][1]));
      weight[j][1] = transpose_8x8(pack_pair(Element(), score[j][2], score[j][3]));
    }
  }

  // A warp's groups of keys: first, first + kStride, … below end.
  static constexpr int kStride = kDecodeWarps * kDecodeKeys;

  // Of the first round the groups of keys below `old`, or the others.
  __device__ void load_round(const Pages<Kv, kHeadDim>& pages, int first, int end, int old, bool wants_old) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      const int key = first + j * kStride;
      if (key >= end || (key + kDecodeKeys <= old) != wants_old) continue;
      const int64_t at = pages.offset(pages.block_of(key), key);
      load_k(j, pages.k + at);
      load_v(j, pages.v + at);
    }
  }

  // The first round is loaded. The next round's K is on its way while this one's weights are worked out, its
  // V while the next scores are.
  __device__ void run(const Pages<Kv, kHeadDim>& pages, int first, int end, int context, float scale) {
    constexpr int kRound = kGroups * kStride;
    const int g = static_cast<int>(threadIdx.x) % kWarpSize / 4;
    int blocks[kGroups] = {};
    auto find_blocks = [&](int round) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        if (round + j * kStride < end) blocks[j] = pages.block_of(round + j * kStride);
      }
    };
    find_blocks(first + kRound);
#pragma unroll 1
    for (int round = first; round < end; round += kRound) {
      const int next = round + kRound;
      float scores[kTiles][kGroups][4];
      score_keys(scores);
      int64_t at[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        at[j] = pages.offset(blocks[j], next + j * kStride);
        if (next + j * kStride < end) load_k(j, pages.k + at[j]);
      }
      find_blocks(next + kRound);
      int keys[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) keys[j] = round + j * kStride < end ? round + j * kStride : kNoKey;
      int of_thread[kGroups];
#pragma unroll
      for (int j = 0; j < kGroups; ++j) of_thread[j] = keys[j] + g;
      uint32_t weights[kTiles][kGroups][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) weigh(t, scores[t], of_thread, scale, weights[t]);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        if (keys[j] + kDecodeKeys > context) clear_v(j, keys[j], context);
      }
      add_values(weights);
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        if (next + j * kStride < end) load_v(j, pages.v + at[j]);
      }
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
  const int old = item.context - item.num_queries;
  softmax.load_round(pages, first, item.end, old, true);
  // The weights that the next kernel asks for queue up behind these keys.
  let_next_start();
  if (args.beside_prompts) {
    __threadfence();  // what this multiprocessor still caches of the memory of q is the layer's before
  } else {
    wait_for_previous();
  }
  softmax.start(args, queries, rows, kv_head, 0);
  softmax.load_round(pages, first, item.end, old, false);
  softmax.run(pages, first, item.end, rows.context, args.scale);
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
  // The most of any call: engines of one process share the attribute.
  (void)cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, std::max(kResults, kBytesForTwo));
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
