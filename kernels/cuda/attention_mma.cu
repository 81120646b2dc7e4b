// Causal paged attention of decodes on tensor cores, transposed: keys, then dimensions of V, are the 16 rows
// of each product, queries its 8 columns, so that a decode of a few query heads wastes little. K and V go
// from the cache to registers in 16-byte loads, without shared memory: dimensions may enter a product in any
// order that Q follows too, and pairs of V's rows are interleaved in registers. One warp keeps an online
// softmax of kTiles · 8 rows.
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kKeys = 16;  // of one round of a warp

// The block table's entries along a warp's rounds, one ahead, since an address has to wait for its entry.
template <typename T, int kHeadDim>
struct Pages {
  const T* k;
  const T* v;
  const int32_t* table;
  int block_size;
  int64_t block_stride;

  __device__ Pages(
      const PagedAttentionArgs& args, const T* k_cache, const T* v_cache, int sequence, int kv_head)
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

template <typename T, int kHeadDim, int kTiles>
struct Softmax {
  static constexpr int kChunks = kHeadDim / 32;  // of K, two products each
  static constexpr int kHalves = kHeadDim / 64;  // of V, four products each

  uint4 q[kTiles][kChunks];
  uint4 k_low[kChunks];      // of key g of a round
  uint4 k_high[kChunks];     // of key g + 8
  uint4 v_rows[kHalves][4];  // of keys 2q, 2q + 1, 2q + 8, 2q + 9
  float out[kTiles][kHalves * 4][4];
  float max[kTiles][2];
  float sum[kTiles][2];    // of this thread's keys only, until finish()
  int visible[kTiles][2];  // keys that rows 2q and 2q + 1 of a tile may see

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
      for (int c = 0; c < kChunks; ++c) {
        q[t][c] = {};
        if (row < rows.num_rows) {
          const T* from = queries.row(rows.query_start + row / args.group) +
                          (kv_head * args.group + row % args.group) * kHeadDim + c * 32 + lane % 4 * 8;
          q[t][c] = *reinterpret_cast<const uint4*>(from);
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
      for (int m = 0; m < kHalves * 4; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[t][m][i] = 0;
      }
    }
  }

  __device__ void load_k(const T* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const T* from = at + lane / 4 * kHeadDim + lane % 4 * 8;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      k_low[c] = *reinterpret_cast<const uint4*>(from + c * 32);
      k_high[c] = *reinterpret_cast<const uint4*>(from + 8 * kHeadDim + c * 32);
    }
  }
  __device__ void load_v(const T* at) {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const T* from = at + 2 * (lane % 4) * kHeadDim + lane / 4 * 8;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      v_rows[h][0] = *reinterpret_cast<const uint4*>(from + h * 64);
      v_rows[h][1] = *reinterpret_cast<const uint4*>(from + h * 64 + kHeadDim);
      v_rows[h][2] = *reinterpret_cast<const uint4*>(from + h * 64 + 8 * kHeadDim);
      v_rows[h][3] = *reinterpret_cast<const uint4*>(from + h * 64 + 9 * kHeadDim);
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
      for (int h = 0; h < kHalves; ++h) v_rows[h][r] = {};
    }
  }

  __device__ void score_keys(float (&scores)[kTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      scores[t][0] = scores[t][1] = scores[t][2] = scores[t][3] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4& a = k_low[c];
        const uint4& b = k_high[c];
        mma_16x8x16(T(), scores[t], a.x, b.x, a.y, b.y, q[t][c].x, q[t][c].y);
        mma_16x8x16(T(), scores[t], a.z, b.z, a.w, b.w, q[t][c].z, q[t][c].w);
      }
    }
  }

  __device__ void add_values(const uint32_t (&weights)[kTiles][2]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t* r0 = reinterpret_cast<const uint32_t*>(&v_rows[h][0]);
      const uint32_t* r1 = reinterpret_cast<const uint32_t*>(&v_rows[h][1]);
      const uint32_t* r2 = reinterpret_cast<const uint32_t*>(&v_rows[h][2]);
      const uint32_t* r3 = reinterpret_cast<const uint32_t*>(&v_rows[h][3]);
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t a0 = __byte_perm(r0[m], r1[m], 0x5410);
        const uint32_t a1 = __byte_perm(r0[m], r1[m], 0x7632);
        const uint32_t a2 = __byte_perm(r2[m], r3[m], 0x5410);
        const uint32_t a3 = __byte_perm(r2[m], r3[m], 0x7632);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          mma_16x8x16(T(), out[t][h * 4 + m], a0, a1, a2, a3, weights[t][0], weights[t][1]);
        }
      }
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
      for (int m = 0; m < kHalves * 4; ++m) {
        out[t][m][i] *= rescale;
        out[t][m][2 + i] *= rescale;
      }
    }
    weight[0] = transpose_8x8(pack_pair(T(), score[0], score[1]));
    weight[1] = transpose_8x8(pack_pair(T(), score[2], score[3]));
  }

  __device__ void load_round(const Pages<T, kHeadDim>& pages, int first) {
    const int64_t at = pages.offset(pages.block_of(first), first);
    load_k(pages.k + at);
    load_v(pages.v + at);
  }

  // Rounds of this warp: keys first, first + stride, … below end; the first round is loaded. The next round's
  // K is on its way while this one's weights are worked out, its V while the next scores are.
  __device__ void run(
      const Pages<T, kHeadDim>& pages, int first, int end, int stride, int context, float scale) {
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
      if (key + kKeys > context) clear_v(key, context);
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

  // The eight dimensions of row 2q + i of tile t, half h, that this thread holds: h · 64 + g · 8 ….
  __device__ void dims(int t, int i, int h, float (&values)[8]) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      values[2 * m] = out[t][h * 4 + m][i];
      values[2 * m + 1] = out[t][h * 4 + m][2 + i];
    }
  }
};

// A split's or a warp's result of one row: dimensions, then maximum and sum.
template <int kHeadDim>
__device__ inline float weight_of(const float* partial, float max) {
  return max == -INFINITY ? 0.0f : exp2f(partial[kHeadDim] - max);
}

// Merges `count` partial results of a row that stand `stride` floats apart: eight dimensions from `dim`.
template <int kHeadDim>
__device__ inline void merge_row(
    const float* partial, int count, int64_t stride, int dim, float (&values)[8], float& max, float& sum) {
  max = -INFINITY;
  sum = 0;
#pragma unroll 8
  for (int s = 0; s < count; ++s) max = fmaxf(max, partial[s * stride + kHeadDim]);
#pragma unroll
  for (int v = 0; v < 8; ++v) values[v] = 0;
#pragma unroll 8
  for (int s = 0; s < count; ++s) {
    const float* from = partial + s * stride;
    const float weight = weight_of<kHeadDim>(from, max);
    sum += weight * from[kHeadDim + 1];
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
      const float2 pair = *reinterpret_cast<const float2*>(from + dim + v);
      values[v] += weight * pair.x;
      values[v + 1] += weight * pair.y;
    }
  }
}

// Grid: decode items × kv heads. The warps take keys in turns and merge in shared memory; the last block of a
// sequence's shares merges those.
template <typename T, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(kThreads, kTiles == 1 ? 3 : 2) attend_decodes(
    PagedAttentionArgs args, RowView<const T> queries, const T* k_cache, const T* v_cache, RowView<T> out) {
  constexpr int kRows = kTiles * 8;
  constexpr int kWidth = kHeadDim + 2;
  constexpr int kPieces = kHeadDim / 8;
  __shared__ float merged[kWarps][kRows][kWidth];
  __shared__ int arrived;
  // The plan, the block table and what earlier steps left in the cache are older than the kernels at the
  // beginning of the step that wait for all in front of them: they are there before any wait of this one.
  const DecodeItem item = args.plan.decode[blockIdx.x];
  if (item.sequence < 0) return wait_for_previous();
  const int kv_head = static_cast<int>(blockIdx.y);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const AttentionRows rows{
      item.sequence, item.query_start, item.num_queries * args.group, item.context, item.num_queries};
  Softmax<T, kHeadDim, kTiles> softmax;
  const Pages<T, kHeadDim> pages(args, k_cache, v_cache, item.sequence, kv_head);
  const int first = item.begin + warp * kKeys;
  const bool older = first + kKeys <= item.context - item.num_queries;
  if (older && first < item.end) softmax.load_round(pages, first);
  // The weights that the next kernel asks for queue up behind these keys.
  let_next_start();
  wait_for_previous();
  softmax.start(args, queries, rows, kv_head, 0);
  if (!older && first < item.end) softmax.load_round(pages, first);
  softmax.run(pages, first, item.end, kWarps * kKeys, rows.context, args.scale);
  softmax.finish();
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float* to = merged[warp][8 * t + lane % 4 * 2 + i];
#pragma unroll
      for (int h = 0; h < kHeadDim / 64; ++h) {
        float values[8];
        softmax.dims(t, i, h, values);
#pragma unroll
        for (int v = 0; v < 8; ++v) to[h * 64 + lane / 4 * 8 + v] = values[v];
      }
      if (lane / 4 == 0) {
        to[kHeadDim] = softmax.max[t][i];
        to[kHeadDim + 1] = softmax.sum[t][i];
      }
    }
  }
  __syncthreads();

  const int64_t slot = static_cast<int64_t>(item.first_slot) * args.num_kv_heads + kv_head;
  const int64_t split_stride = static_cast<int64_t>(args.num_kv_heads) * args.plan.decode_rows * kWidth;
  float* first_partial = args.plan.partial + slot * args.plan.decode_rows * kWidth;
  auto write_out = [&](int row, int dim, float(&values)[8], float sum) {
    const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
    for (int v = 0; v < 8; ++v) values[v] *= inverse;
    store_vec<8>(values,
                 out.row(rows.query_start + row / args.group) +
                     (kv_head * args.group + row % args.group) * kHeadDim + dim);
  };
  float values[8];
  float max;
  float sum;
  for (int i = static_cast<int>(threadIdx.x); i < rows.num_rows * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int dim = i % kPieces * 8;
    merge_row<kHeadDim>(merged[0][row], kWarps, kRows * kWidth, dim, values, max, sum);
    if (item.num_splits == 1) {
      write_out(row, dim, values, sum);
      continue;
    }
    float* to = first_partial + item.split * split_stride + row * kWidth;
#pragma unroll
    for (int v = 0; v < 8; v += 2) {
      *reinterpret_cast<float2*>(to + dim + v) = make_float2(values[v], values[v + 1]);
    }
    if (dim == 0) *reinterpret_cast<float2*>(to + kHeadDim) = make_float2(max, sum);
  }
  if (item.num_splits == 1) return;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) arrived = atomicAdd(args.plan.finished + slot, 1);
  __syncthreads();
  if (arrived != item.num_splits - 1) return;
  __threadfence();
  if (threadIdx.x == 0) args.plan.finished[slot] = 0;
  for (int i = static_cast<int>(threadIdx.x); i < rows.num_rows * kPieces; i += kThreads) {
    const int row = i / kPieces;
    const int dim = i % kPieces * 8;
    merge_row<kHeadDim>(first_partial + row * kWidth, item.num_splits, split_stride, dim, values, max, sum);
    write_out(row, dim, values, sum);
  }
}

template <typename T, int kHeadDim>
void launch(const PagedAttentionArgs& args, const AttentionParams& params, cudaStream_t stream) {
  const auto kv_heads = static_cast<unsigned>(args.num_kv_heads);
  const auto* k = static_cast<const T*>(params.k_cache.data);
  const auto* v = static_cast<const T*>(params.v_cache.data);
  const auto q = rows_as<const T>(params.q);
  const auto out = rows_as<T>(params.out);
  const dim3 decode_grid(static_cast<unsigned>(args.plan.num_decode), kv_heads);
  if (args.plan.decode_rows == 8) {
    launch_overlapped(attend_decodes<T, kHeadDim, 1>, decode_grid, kThreads, stream, args, q, k, v, out);
  } else {
    launch_overlapped(attend_decodes<T, kHeadDim, 2>, decode_grid, kThreads, stream, args, q, k, v, out);
  }
  if (args.plan.num_prompt == 0) return;
  launch_attend_prompts<T, kHeadDim>(args, q, k, v, out, stream);
}

}  // namespace

void attention_tensor_cores(const AttentionPlan& plan, const AttentionParams& params, cudaStream_t stream) {
  constexpr float kLog2E = 1.44269504088896340736f;
  const int64_t num_sequences = params.context_lens.dim(0);
  CHECK(plan.num_sequences == num_sequences && plan.num_tokens == params.q.dim(0) &&
            plan.num_kv_heads == params.num_kv_heads,
        "attention over {} tokens of {} sequences, planned for {} and {}",
        params.q.dim(0),
        num_sequences,
        plan.num_tokens,
        plan.num_sequences);
  const PagedAttentionArgs args{.query_starts = i32_vector(params.query_starts, num_sequences + 1),
                                .context_lens = i32_vector(params.context_lens, num_sequences),
                                .block_tables = params.block_tables.as<int32_t>(),
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
    if (params.k_cache.dim(3) == 64) return launch<T, 64>(args, params, stream);
    launch<T, 128>(args, params, stream);
  };
  if (params.q.dtype == DType::kBF16) return with_head_dim(__nv_bfloat16{});
  with_head_dim(__half{});
}

}  // namespace llm_dist::kernels
