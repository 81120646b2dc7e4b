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

#include "kernels/cuda/device/decode_softmax.cuh"
#include "kernels/cuda/device/merge_softmaxes.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/hopper_prompts.h"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

using namespace decodes;

constexpr int kThreads = kDecodeWarps * kWarpSize;
constexpr int kBytesBesides = (1 << 10) + 16;  // of a block's shared memory: the driver's, and static ones
// What a thread that merges loads at a time, two of which mostly share a piece. From memory: with that many
// the shares of one long sequence come in two turns, those of two in one. And of a block's warps.
constexpr int kSharesAtOnce = 13;
constexpr int kWarpsAtOnce = kDecodeWarps / 2;

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
  constexpr int kWidth = partial_floats(kHeadDim);
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
        store_values(values, to);
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
    for (int v = 0; v < 8; ++v) values[v] = merged.values[v] * inverse;
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
    const float* at = results + (from * pieces + piece) * kPieceFloats;
    load_values(at, loaded);
    loaded.end = *reinterpret_cast<const float2*>(at + 8);
  };
  merge_block<kThreads, kWarpsAtOnce>(pieces, kDecodeWarps, result_of, [&](int piece, const Piece& merged) {
    if (item.num_splits == 1) return write_out(piece, merged);
    float* to = partial_of(item.split, piece);
    store_values(merged.values, to + piece % kPieces * 8);
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
    load_values(from + piece % kPieces * 8, loaded);
    loaded.end = *reinterpret_cast<const float2*>(from + kHeadDim);
  };
  merge_block<kThreads, kSharesAtOnce>(pieces, item.num_splits, share_of, write_out);
}

// Blocks that a processor's registers are enough for.
constexpr int most_residents(int tiles) { return tiles == 1 ? kDecodeResidents : 2; }

// Grid: kv heads × decode items, so that blocks without work come last.
template <typename T, typename Kv, int kHeadDim, int kTiles>
__global__ void __launch_bounds__(kThreads, most_residents(kTiles)) attend_decodes(
    PagedAttentionArgs args, RowView<const T> queries, const Kv* k_cache, const Kv* v_cache, RowView<T> out) {
  // The plan, the block table and what earlier steps left in the cache are older than the kernels at the
  // beginning of the step that wait for all in front of them: they are there before any wait of this one.
  const DecodeItem item = args.plan.decode[blockIdx.y];
  if (item.sequence >= 0) attend_item<T, Kv, kHeadDim, kTiles>(args, item, queries, k_cache, v_cache, out);
  // One block that waits is enough to order the kernels behind. Where few have work, the others keep places
  // of processors, so that those few spread; but not beside prompts.
  if (!args.beside_prompts || blockIdx.x + blockIdx.y == 0) wait_for_previous();
}

// The part of a processor's memory, in percent, that so many blocks share; the driver rounds it up to the
// next that there is. Memory that is not shared is L1, where what a warp has asked for waits for it: without
// this a block that comes early finds L1 as small as a product's tiles have left it. And the part is what
// keeps a third block from a processor that is to have two.
int shared_percent(int blocks, int bytes_of_block) {
  int device = 0, processor_bytes = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&processor_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  if (processor_bytes == 0) return cudaSharedmemCarveoutDefault;
  const int64_t percent = ceil_div(int64_t{100} * blocks * (bytes_of_block + kBytesBesides), processor_bytes);
  return static_cast<int>(std::min<int64_t>(100, percent));
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
      .shared_bytes = kResults};
  // Engines of one process share attributes. The first is the same in every call; the second may be another
  // engine's, which costs time alone.
  (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kResults);
  (void)cudaFuncSetAttribute(
      kernel,
      cudaFuncAttributePreferredSharedMemoryCarveout,
      shared_percent(std::min(args.plan.decode_residents, most_residents(kTiles)), kResults));
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
