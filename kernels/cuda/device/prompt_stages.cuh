// The tiles of prompt_linear.cu: the order in which a block takes them, and the stages in shared memory
// through which x and W come.
#pragma once

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/handed_rows.cuh"
#include "kernels/cuda/device/prompt_kinds.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels::prompt_products {

constexpr int kMostOutputs = 8;  // shares of y
constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kGroupThreads;
constexpr int kGroupRows = 64;  // of x: what one product takes
constexpr int kTileRows = kMultipliers * kGroupRows;
// Clusters that run at the same time have so many tiles below each other; the others are beside them. The
// rows of x that belong to them, 2048, are to stay in L2 while one strip of W after the other goes by.
constexpr int kRasterTiles = 16;

// kRows: blocks below each other, kColumns: beside each other.
template <int kRows_, int kColumns_>
struct ClusterOf {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kBlocks = kRows * kColumns;
  static constexpr int kXRows = kTileRows / kColumns;    // that a block brings of x
  static constexpr int kSharers = kRows + kColumns - 1;  // blocks that write to a block's stages
  // That a block brings of W.
  template <typename Kind>
  static constexpr int kWRows = Kind::kWRows / kRows;
  static_assert(kRows % 2 == 0);  // all of a half
};
using Pair = ClusterOf<2, 1>;
using Eight = ClusterOf<4, 2>;

// Registers that a thread keeps or gets: 65,536 in all.
constexpr int kCopierRegisters = 40;
constexpr int kMultiplierRegisters = 232;

struct TileArgs {
  int rows = 0;          // of a share of y
  int half_stride = 0;   // rows of W from a tile's first half to its second
  int steps = 0;         // stages that hold all columns of x
  int steps_a_turn = 1;  // from one turn to the next
  // Of clusters; of a product's second kernel, of the first one's clusters. All shares have as many.
  int row_tiles = 0;
  int column_tiles = 0;
  int first_tile = 0;  // that the kernel multiplies
  int tiles = 0;       // of its own clusters
  int first_share = 0;
  int shares = 1;
  bool second = false;  // of the two kernels of a product
  // Of codes: [rows of x], whose shares stand one behind the other, or of groups [k / 128, rows of x];
  // [w_rows] of W; of groups of y [columns / 128, rows of y].
  const float* x_scales = nullptr;
  const float* w_scales = nullptr;
  float* y_scales = nullptr;
  int w_rows = 0;

  __device__ int all_rows() const { return shares * rows; }
};

// Of y, one a share.
struct OutMaps {
  CUtensorMap of_share[kMostOutputs];
};

// Rows of 128 bytes, whose 16-byte pieces TMA permutes.
template <typename Kind>
struct Memory {
  static constexpr int kXBytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + Kind::kWRows * kRowBytes;
  static constexpr int kOutBoxBytes = kGroupRows * kRowBytes;
  static constexpr int kBytes = Kind::kStages * kStageBytes + kMultipliers * Kind::kOutBoxes * kOutBoxBytes;
  static constexpr int kSharedBytes = kBytes + 1024;  // to where the base may begin
  static_assert(kStageBytes % 1024 == 0);

  std::byte* base;  // at a multiple of 1024, the same in all blocks of a cluster
  uint64_t* full;   // barriers of the stages
  uint64_t* empty;

  __device__ std::byte* x(int stage, int group) const {
    return base + stage * kStageBytes + group * kGroupRows * kRowBytes;
  }
  __device__ std::byte* w(int stage) const { return base + stage * kStageBytes + kXBytes; }
  __device__ std::byte* out(int group, int box) const {
    return base + Kind::kStages * kStageBytes + (group * Kind::kOutBoxes + box) * kOutBoxBytes;
  }
};

// Of y: its share, and the first row in that and the first column.
struct Tile {
  int share;
  int row;
  int column;
};

// A block's walk over the tiles: from first() on, every clusters()-th of args.tiles.
template <typename Kind, typename C>
struct Walk {
  const TileArgs& args;
  int rank = static_cast<int>(blockIdx.x) % C::kBlocks;
  int row = rank % C::kRows;  // of the block in its cluster
  int column = rank / C::kRows;

  __device__ static int first() { return static_cast<int>(blockIdx.x) / C::kBlocks; }
  __device__ static int clusters() { return static_cast<int>(gridDim.x) / C::kBlocks; }
  // Behind the last: the last.
  __device__ Tile tile_or_last(int i) const { return tile(min(i, args.tiles - 1)); }
  __device__ Tile tile(int i) const {
    const int rows = args.second ? Eight::kRows / C::kRows : 1;  // of such clusters in a tile
    const int columns = args.second ? Eight::kColumns / C::kColumns : 1;
    const int part = i % (rows * columns);
    const int at = args.first_tile + i / (rows * columns);
    const int of_share = args.row_tiles * args.column_tiles;
    const int share = args.first_share + at / of_share;
    const int in_share = at % of_share;
    const int most_rows = kRasterTiles / (rows * C::kRows);
    const int first_row = in_share / (most_rows * args.column_tiles) * most_rows;
    const int height = min(most_rows, args.row_tiles - first_row);
    const int rest = in_share - first_row * args.column_tiles;
    const int cluster_row = (first_row + rest % height) * rows + part % rows;
    const int cluster_column = rest / height * columns + part / rows;
    return {.share = share < args.shares ? share : share - args.shares,
            .row = (cluster_row * C::kRows + row) * kTileRows,
            .column = (cluster_column * C::kColumns + column) * Kind::kColumns};
  }
};

// One thread calls it. handed: where x's rows are in shares, of which the first is this rank's.
template <typename Kind, typename C>
__device__ inline void bring_tiles(const CUtensorMap& x,
                                   const CUtensorMap& w,
                                   const Walk<Kind, C>& walk,
                                   const device::HandedRows& handed,
                                   const Memory<Kind>& memory) {
  constexpr uint32_t kColumnOfBlocks = (1u << C::kRows) - 1;
  uint32_t row_of_blocks = 0;
  for (int i = 0; i < C::kColumns; ++i) row_of_blocks |= 1u << (walk.row + i * C::kRows);
  const auto x_readers = static_cast<uint16_t>(row_of_blocks);
  const auto w_readers = static_cast<uint16_t>(kColumnOfBlocks << (walk.column * C::kRows));
  const int w_at = walk.row * C::template kWRows<Kind>;  // of a stage's rows of W
  const uint64_t policy = policy_read_normally();
  Cursor<Kind::kStages> cursor;
  int last_share = walk.args.first_share;
  for (int i = walk.first(); i < walk.args.tiles; i += walk.clusters()) {
    const Tile tile = walk.tile(i);
    // Shares follow one another.
    if (handed.size > 0 && tile.share != last_share) await_rows(handed, tile.share);
    last_share = tile.share;
    const int x_row = tile.share * walk.args.rows + tile.row;
    const int w_row = w_at / Kind::kHalfRows * walk.args.half_stride + tile.column + w_at % Kind::kHalfRows;
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      uint64_t* full = memory.full + cursor.stage;
      barrier_wait(memory.empty + cursor.stage, cursor.parity ^ 1);
      barrier_arrive_expecting(full, Memory<Kind>::kStageBytes);
      const int at = step * Kind::kStageColumns;
      if constexpr (C::kColumns == 1) {
        load_box(memory.x(cursor.stage, 0), x, at, x_row, full, policy);
      } else {
        const int piece = walk.column * C::kXRows;
        load_box_in_blocks(
            memory.x(cursor.stage, 0) + piece * kRowBytes, x, at, x_row + piece, full, x_readers, policy);
      }
      load_box_in_blocks(memory.w(cursor.stage) + w_at * kRowBytes, w, at, w_row, full, w_readers, policy);
      cursor.advance();
    }
  }
}

}  // namespace llm_dist::kernels::prompt_products
