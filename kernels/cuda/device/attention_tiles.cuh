// Tiles of a context's keys and values for the products of warpgroups (wgmma.cuh), the last tile first: how
// they stand in shared memory, and a warp that asks TMA for them, as many ahead as there is memory. A cache
// of f8_e4m3 codes needs more than that: widened_tiles.cuh.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/prompt_work.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {

inline constexpr int kMultipliers = 2;  // warpgroups
inline constexpr int kGroupRows = kHopperPromptRows / kMultipliers;
inline constexpr int kTileKeys = kHopperPromptKeys;
// Tiles of K, and of V: those stay longer, until their weights are known and multiplied.
inline constexpr int kKeyStages = 2;
inline constexpr int kValueStages = 3;
inline constexpr int kRowBytes = 128;  // TMA's widest swizzle: 64 dimensions
static_assert(kGroupRows == 64);       // what one product takes

struct PromptBarriers {
  uint64_t full_keys[kKeyStages];
  uint64_t empty_keys[kKeyStages];
  uint64_t full_values[kValueStages];
  uint64_t empty_values[kValueStages];
};

// Queries stand as parts of 64 dimensions, each of rows of 128 bytes; keys and values as groups of eight
// rows, each of as many parts: so one copy brings all that stands side by side in a block of the cache, and
// in the blocks behind it. TMA permutes the 16-byte pieces of a row, and so does who writes them otherwise.
// Codes stand as in the cache.
template <typename Kv, int kHeadDim>
struct PromptMemory {
  static constexpr bool kCodes = std::is_same_v<Kv, __nv_fp8_e4m3>;
  static constexpr int kParts = kHeadDim / 64;
  static constexpr int kQueryPart = kGroupRows * kRowBytes;
  static constexpr int kKeyPart = 8 * kRowBytes;
  static constexpr int kEightKeys = kParts * kKeyPart;
  // Queries of the next item come while one is worked on, where there is room.
  static constexpr int kQueryStages = kCodes ? 1 : 2;
  static constexpr int kQueryStageBytes = kMultipliers * kParts * kQueryPart;
  static constexpr int kQueryBytes = kQueryStages * kQueryStageBytes;
  static constexpr int kTileBytes = kTileKeys / 8 * kEightKeys;
  static constexpr int kTiles = kKeyStages + kValueStages;
  // Codes on their way: each of the warps that widen them has its own keys of a tile.
  static constexpr int kWideners = kGroupThreads / kWarpSize;
  static constexpr int kWidenerKeys = kTileKeys / kWideners;
  static constexpr int kCodeBytes = kWidenerKeys * kHeadDim;
  static constexpr int kCodeStages = 128 / kHeadDim;  // of K and V: 32 KiB in all
  static constexpr int kBytes =
      kQueryBytes + kTiles * kTileBytes + (kCodes ? kCodeStages * 2 * kWideners * kCodeBytes : 0);

  std::byte* base;  // at a multiple of 1024

  // Beside the tiles: an address that is a sum costs less than one that is asked for anew.
  __device__ PromptBarriers& barriers() const { return *reinterpret_cast<PromptBarriers*>(base + kBytes); }
  __device__ std::byte* queries(int stage, int group, int part) const {
    return base + stage * kQueryStageBytes + (group * kParts + part) * kQueryPart;
  }
  __device__ std::byte* keys(int stage) const { return base + kQueryBytes + stage * kTileBytes; }
  __device__ std::byte* values(int stage) const { return keys(kKeyStages + stage); }
  // Of a warp's keys (0) or values (1).
  __device__ std::byte* codes(int warp, int stage, int which) const {
    return keys(kTiles) + ((warp * kCodeStages + stage) * 2 + which) * kCodeBytes;
  }
};

// What TMA is told of a cache, [blocks, eight keys after eight keys of a block, parts, 8, 64]: with boxes of
// a page, and with boxes of a tile whose pages are blocks that follow each other.
struct PromptMaps {
  CUtensorMap pages;
  CUtensorMap runs;
};

// A cache as tiles are brought from it.
template <typename Kv>
using PromptCache = std::conditional_t<std::is_same_v<Kv, __nv_fp8_e4m3>, const __nv_fp8_e4m3*, PromptMaps>;

// The caches as the copies see them: eight keys of a head after eight keys, which the strides count.
struct KeyPages {
  int keys;  // of a page, which is what one copy brings: 16 to those of a tile, or of a warp that widens
  int block_stride;
  int head_stride;
  bool runs;  // there are maps of them
};

// What a block brings: of one kv head, the keys of a sequence below `end`.
struct BroughtKeys {
  const PagedAttentionArgs& args;
  const KeyPages& pages;
  int sequence;
  int kv_head;
  int end;

  __device__ BroughtKeys(const PagedAttentionArgs& arguments,
                         const KeyPages& of_cache,
                         const PromptWork& work)
      : args(arguments),
        pages(of_cache),
        sequence(work.item.sequence),
        kv_head(work.kv_head),
        end(work.end(arguments.group)) {}
  __device__ int num_tiles() const { return (end + kTileKeys - 1) / kTileKeys; }
  __device__ const int32_t* table() const { return args.block_tables + sequence * args.table_stride; }
  // The cache's block, from table(), with the page from a tile's key `first` on; −1 where there is none, or
  // not below `limit`.
  __device__ int block_of(const int32_t* table, int tile, int first, int limit) const {
    const int key = tile * kTileKeys + first;
    return tile >= 0 && first < limit && key < end ? table[key / args.block_size] : -1;
  }
  // That page's first eight keys: of its block, and of the cache.
  __device__ int eight_keys(int tile, int first) const {
    return kv_head * pages.head_stride + (tile * kTileKeys + first) % args.block_size / 8;
  }
  __device__ int eight_keys(int tile, int first, int block) const {
    return block * pages.block_stride + eight_keys(tile, first);
  }
};

// Where a block is in its rings of tiles, from one piece of work to the next.
struct TileCursors {
  Cursor<kKeyStages> keys;
  Cursor<kValueStages> values;
};

// The tiles of one piece of work. A warp calls it. A lane brings a page, or the first one a whole tile: a
// copy costs the more the less it brings.
template <typename T, int kHeadDim>
__device__ inline void bring_tiles(const PromptMaps& k_maps,
                                   const PromptMaps& v_maps,
                                   const BroughtKeys& keys,
                                   const PromptMemory<T, kHeadDim>& memory,
                                   TileCursors& cursors) {
  PromptBarriers& barriers = memory.barriers();
  using M = PromptMemory<T, kHeadDim>;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int page_keys = keys.pages.keys;
  const int first = lane * page_keys;  // of this lane's page in a tile
  const uint64_t policy = policy_read_normally();
  const int32_t* table = keys.table();
  auto block_of = [&](int tile) { return keys.block_of(table, tile, first, kTileKeys); };
  const int count = keys.num_tiles();
  int block = block_of(count - 1);
  auto& [key_cursor, value_cursor] = cursors;
#pragma unroll 1
  for (int tile = count - 1; tile >= 0; --tile) {
    const int next = block_of(tile - 1);
    // Every page's block is there, and follows the one before.
    const int first_block = __shfl_sync(0xffffffffu, block, 0);
    const bool run =
        __all_sync(0xffffffffu, keys.pages.runs && (first >= kTileKeys || block == first_block + lane));
    const bool asks = run ? lane == 0 : block >= 0;
    const int eight_keys = keys.eight_keys(tile, first);
    const int num_pages = (min(kTileKeys, keys.end - tile * kTileKeys) + page_keys - 1) / page_keys;
    const auto bytes = static_cast<uint32_t>(num_pages * page_keys / 8 * M::kEightKeys);
    auto bring =
        [&](const PromptMaps& maps, std::byte* to, uint64_t* full, uint64_t* empty, uint32_t parity) {
          barrier_wait(empty, parity ^ 1);
          if (lane == 0) barrier_arrive_expecting(full, bytes);
          __syncwarp();
          if (!asks) return;
          const CUtensorMap& map = run ? maps.runs : maps.pages;
          load_box_5d(to + first / 8 * M::kEightKeys, map, 0, 0, 0, eight_keys, block, full, policy);
        };
    bring(k_maps,
          memory.keys(key_cursor.stage),
          barriers.full_keys + key_cursor.stage,
          barriers.empty_keys + key_cursor.stage,
          key_cursor.parity);
    bring(v_maps,
          memory.values(value_cursor.stage),
          barriers.full_values + value_cursor.stage,
          barriers.empty_values + value_cursor.stage,
          value_cursor.parity);
    key_cursor.advance();
    value_cursor.advance();
    block = next;
  }
}

// All of a block's work; a warp calls it.
template <typename T, int kHeadDim>
__device__ inline void bring_work(const PromptMaps& k_maps,
                                  const PromptMaps& v_maps,
                                  const PagedAttentionArgs& args,
                                  const KeyPages& pages,
                                  const PromptMemory<T, kHeadDim>& memory) {
  TileCursors cursors;
  PromptWalk walk(args);
  for (PromptWork work = walk.next(); work.exists(); work = walk.next())
    bring_tiles(k_maps, v_maps, BroughtKeys(args, pages, work), memory, cursors);
}

}  // namespace llm_dist::kernels
