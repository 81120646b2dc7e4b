// What a warp of attention_mma.cu does with keys of a sequence: the pages they are on, and an online softmax
// of some rows of queries over them.
#pragma once

#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels::decodes {

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

}  // namespace llm_dist::kernels::decodes
