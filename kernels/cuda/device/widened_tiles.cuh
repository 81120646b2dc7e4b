// Tiles (attention_tiles.cuh) from a cache of f8_e4m3 codes. Those are copied as they are to where four warps
// widen them: each has 32 keys of every tile, asks for their codes and for more as soon as it has read them,
// so that it waits for no other warp but those that multiply. Keys become elements like the queries'. Values
// are f16 always: a pair takes one conversion and half a shift, of bf16 four or five instructions.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/device/attention_tiles.cuh"
#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace llm_dist::kernels {

// One of the warps that widen, with its keys of every tile.
template <typename T, int kHeadDim>
struct Widener {
  using M = PromptMemory<__nv_fp8_e4m3, kHeadDim>;
  static constexpr int kLoads = M::kCodeBytes / (kWarpSize * 16);
  // Where only this warp waits: for the codes of each stage's keys (0) and values (1).
  struct Arrivals {
    uint64_t codes[M::kCodeStages][2];
  };

  const __nv_fp8_e4m3* k_cache;
  const __nv_fp8_e4m3* v_cache;
  const M& memory;
  PromptBarriers& barriers;
  Arrivals& arrivals;
  int warp;
  int lane;
  int first;  // of this lane's page in a tile
  Cursor<M::kCodeStages> cursor;
  TileCursors cursors;

  // Every lane asks for its page of a tile, those without a block for none.
  __device__ void ask(const BroughtKeys& keys, int which, int stage, int block, int eight_keys) const {
    uint64_t* arrival = &arrivals.codes[stage][which];
    const auto bytes = static_cast<uint32_t>(keys.pages.keys * kHeadDim);
    const auto num_pages = static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, block >= 0)));
    if (lane == 0) barrier_arrive_expecting(arrival, num_pages * bytes);
    __syncwarp();
    if (block < 0) return;
    const __nv_fp8_e4m3* from = (which == 0 ? k_cache : v_cache) + int64_t{eight_keys} * (8 * kHeadDim);
    load_bytes(memory.codes(warp, stage, which) + lane * bytes, from, bytes, arrival);
  }

  // Of eight keys a lane takes 16 codes of the one that is row() at a time. The eight lanes that access
  // memory together have different parts of two rows: other banks where codes stand, and, since pieces are
  // permuted, in the tile.
  __device__ int row() const { return lane / 4; }
  __device__ int part(int j) const { return (row() + j) % M::kParts; }

  // Whatever stands there: of rows that were not asked for, or are not the sequence's any more, too.
  __device__ void load(const std::byte* from, uint4 (&codes)[kLoads]) const {
    from += row() * kHeadDim + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      codes[i] =
          *reinterpret_cast<const uint4*>(from + i / M::kParts * 8 * kHeadDim + part(i % M::kParts) * 64);
  }
  // All but the first `count` rows become zeros.
  __device__ void clear_behind(int count, uint4 (&codes)[kLoads]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      if (i / M::kParts * 8 + row() >= count) codes[i] = {};
  }
  template <typename Element>
  __device__ void store(const uint4 (&codes)[kLoads], std::byte* tile) const {
    const int piece = lane % 4 * 2 ^ row();
    std::byte* to = tile + warp * (M::kWidenerKeys / 8) * M::kEightKeys + row() * kRowBytes;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint2 words[] = {widen_four(Element(), codes[i].x),
                             widen_four(Element(), codes[i].y),
                             widen_four(Element(), codes[i].z),
                             widen_four(Element(), codes[i].w)};
      auto* pieces =
          reinterpret_cast<uint4*>(to + i / M::kParts * M::kEightKeys + part(i % M::kParts) * M::kKeyPart);
      pieces[piece] = {words[0].x, words[0].y, words[1].x, words[1].y};
      pieces[piece ^ 1] = {words[2].x, words[2].y, words[3].x, words[3].y};
    }
  }

  __device__ void start() const {
    if (lane == 0) {
      for (auto& stage : arrivals.codes) {
        for (uint64_t& arrival : stage) barrier_init(&arrival, 1);
      }
      barrier_init_done();
    }
    __syncwarp();
  }
  // The tiles of one piece of work.
  __device__ void run(const BroughtKeys& keys) {
    const int32_t* table = keys.table();
    auto block_of = [&](int tile) { return keys.block_of(table, tile, first, (warp + 1) * M::kWidenerKeys); };
    const int count = keys.num_tiles();
#pragma unroll
    for (int i = 0; i < M::kCodeStages; ++i) {
      const int tile = count - 1 - i;
      if (tile < 0) break;
      const int block = block_of(tile);
      const int eight_keys = keys.eight_keys(tile, first, block);
      const int stage = (cursor.stage + i) % M::kCodeStages;
      ask(keys, 0, stage, block, eight_keys);
      ask(keys, 1, stage, block, eight_keys);
    }
    int block = block_of(count - 1 - M::kCodeStages);
    auto& [key_cursor, value_cursor] = cursors;
#pragma unroll 1
    for (int tile = count - 1; tile >= 0; --tile) {
      const int asked = tile - M::kCodeStages;
      const int next = block_of(asked - 1);
      const int eight_keys = keys.eight_keys(asked, first, block);
      const int present = keys.end - tile * kTileKeys - warp * M::kWidenerKeys;
      auto bring =
          [&](auto element, int which, std::byte* to, uint64_t* full, uint64_t* empty, uint32_t parity) {
            uint4 codes[kLoads];
            barrier_wait(&arrivals.codes[cursor.stage][which], cursor.parity);
            load(memory.codes(warp, cursor.stage, which), codes);
            // Of values: a weight of zero does not silence a NaN. Scores of such keys are not looked at.
            if (which == 1 && present < M::kWidenerKeys) clear_behind(present, codes);
            barrier_wait(empty, parity ^ 1);
            store<decltype(element)>(codes, to);
            release_to_products();  // and the codes have been read before others are copied there
            __syncwarp();
            if (lane == 0) barrier_arrive(full);
            if (asked >= 0) ask(keys, which, cursor.stage, block, eight_keys);
          };
      bring(T(),
            0,
            memory.keys(key_cursor.stage),
            barriers.full_keys + key_cursor.stage,
            barriers.empty_keys + key_cursor.stage,
            key_cursor.parity);
      bring(__half(),
            1,
            memory.values(value_cursor.stage),
            barriers.full_values + value_cursor.stage,
            barriers.empty_values + value_cursor.stage,
            value_cursor.parity);
      cursor.advance();
      key_cursor.advance();
      value_cursor.advance();
      block = next;
    }
  }
};

// All of a block's work; a warpgroup calls it.
template <typename T, int kHeadDim>
__device__ inline void widen_work(const __nv_fp8_e4m3* k_cache,
                                  const __nv_fp8_e4m3* v_cache,
                                  const PagedAttentionArgs& args,
                                  const KeyPages& pages,
                                  const PromptMemory<__nv_fp8_e4m3, kHeadDim>& memory) {
  using M = PromptMemory<__nv_fp8_e4m3, kHeadDim>;
  __shared__ typename Widener<T, kHeadDim>::Arrivals arrivals[M::kWideners];
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  Widener<T, kHeadDim> widener{.k_cache = k_cache,
                               .v_cache = v_cache,
                               .memory = memory,
                               .barriers = memory.barriers(),
                               .arrivals = arrivals[warp],
                               .warp = warp,
                               .lane = lane,
                               .first = warp * M::kWidenerKeys + lane * pages.keys,
                               .cursor = {},
                               .cursors = {}};
  widener.start();
  PromptWalk walk(args);
  for (PromptWork work = walk.next(); work.exists(); work = walk.next())
    widener.run(BroughtKeys(args, pages, work));
}

}  // namespace llm_dist::kernels
