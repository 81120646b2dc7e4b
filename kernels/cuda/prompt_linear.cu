// Products of prompts. A block stays on its processor and takes tile after tile: 128 rows of x by 256 of W.
// Of a gated product those are 128 rows of the gate and the 128 of up that belong to them, so that a thread
// gets the sums of both and rounds, gates and stores them without a product in memory. The scheme is that of
// CUTLASS's persistent cooperative kernel for Hopper (warp-specialized, its producer and consumers joined by
// barriers around a ring of stages):
//
// - One thread asks TMA for 64 columns of x and W at a time, as many stages ahead as shared memory holds, and
//   goes on to the next tile's while this one's results are stored.
// - Two warpgroups multiply, 64 rows of x each, so that what is brought of W is read by both. The products of
//   one stage are under way while the next stage is waited for.
// - Blocks with rows of x below each other share what they bring of W, blocks beside each other what they
//   bring of x: each brings a part for all. A processor at its power limit pays for what is moved. Clusters
//   of four by two blocks bring half of what pairs do, but leave some processors empty, as a cluster lies
//   within one of the parts that a GPU is made of. Those get pairs of a second kernel with some columns of y
//   to itself. It begins behind the first one's blocks, so as to take no place of theirs, and ends behind
//   them, for the kernels that follow to wait for one alone.
// - Tiles are taken in an order in which those that run at the same time share rows of x and of W in L2.
// - y may be in shares, runs of rows with a place of their own each: another GPU's memory, to which TMA
//   stores a tile while the next one is multiplied, piece by piece: all blocks end a tile at the same time,
//   and behind stores that wait for the link, loads wait, too. Shares come one after the other, so that all
//   but the last cross while there is still something to multiply.
//
// Of a gated product sums are rounded to the output's type before the gate is applied, as they are where a
// product stands in memory in between.
#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prompt_linear.h"

namespace llm_dist::kernels {
namespace {

constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kGroupThreads;
constexpr int kGroupRows = 64;  // of x: what one product takes
constexpr int kTileRows = kMultipliers * kGroupRows;
constexpr int kHalfRows = 128;    // of W: a half of a tile's
constexpr int kSums = kHalfRows;  // of a thread: half of either half's
constexpr int kRowBytes = 128;    // TMA's widest swizzle
constexpr int kStageColumns = kRowBytes / 2;
// Clusters that run at the same time have so many tiles below each other; the others are beside them.
constexpr int kRasterRows = 8;
constexpr int64_t kLeastRows = 256;

// What becomes of a tile's sums. kColumns: of y. kStages: as many as there is room for beside a tile of y.
struct Gated {
  static constexpr int kColumns = kHalfRows;
  static constexpr int kStages = 4;
  static constexpr int kMostShares = 1;
  static constexpr bool kStoresAtOnce = true;
};
struct Plain {
  static constexpr int kColumns = 2 * kHalfRows;
  static constexpr int kStages = 3;
  static constexpr int kMostShares = PromptLinear::kMostShares;
  static constexpr bool kStoresAtOnce = false;
};

// kRows: blocks below each other, kColumns: beside each other.
template <int kRows_, int kColumns_>
struct ClusterOf {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kBlocks = kRows * kColumns;
  static constexpr int kXRows = kTileRows / kColumns;    // that a block brings of x
  static constexpr int kWRows = 2 * kHalfRows / kRows;   // and of W
  static constexpr int kSharers = kRows + kColumns - 1;  // blocks that write to a block's stages
  static_assert(kRows >= 2 && kHalfRows % kWRows == 0);
};
using Pair = ClusterOf<2, 1>;
using Eight = ClusterOf<4, 2>;

// Registers that a thread keeps or gets: 65,536 in all.
constexpr int kCopierRegisters = 24;
constexpr int kMultiplierRegisters = 240;

struct TileArgs {
  int rows = 0;         // of a share of y
  int half_stride = 0;  // rows of W from a tile's first half to its second
  int steps = 0;        // stages that hold all columns of x
  int steps_a_box = 1;  // of a tile that is stored while the next one is multiplied
  int row_tiles = 0;    // of clusters, of a share
  int column_tiles = 0;
  int first_column = 0;  // of y, that the kernel multiplies
  int shares = 1;
  int first_share = 0;
  bool second = false;  // of the two kernels of a product
};

// Of y, one a share.
template <int kCount>
struct OutMaps {
  CUtensorMap of_share[kCount];
};

// Rows of 128 bytes, whose 16-byte pieces TMA permutes.
template <typename Kind>
struct Memory {
  static constexpr int kStages = Kind::kStages;
  static constexpr int kXBytes = kTileRows * kRowBytes;
  static constexpr int kStageBytes = kXBytes + 2 * kHalfRows * kRowBytes;
  static constexpr int kOutBoxBytes = kGroupRows * kRowBytes;
  static constexpr int kOutBoxes = Kind::kColumns / kStageColumns;  // of a warpgroup, side by side in y
  static constexpr int kBytes = kStages * kStageBytes + kMultipliers * kOutBoxes * kOutBoxBytes;

  std::byte* base;  // at a multiple of 1024, the same in all blocks of a cluster
  uint64_t* full;   // barriers of the stages
  uint64_t* empty;

  __device__ std::byte* x(int stage, int group) const {
    return base + stage * kStageBytes + group * kGroupRows * kRowBytes;
  }
  __device__ std::byte* w(int stage) const { return base + stage * kStageBytes + kXBytes; }
  __device__ std::byte* out(int group, int box) const {
    return base + kStages * kStageBytes + (group * kOutBoxes + box) * kOutBoxBytes;
  }
};

template <typename Kind>
constexpr int kSharedBytes = Memory<Kind>::kBytes + 1024;  // to where the base may begin

// Of y: its share, and the first row in that and the first column.
struct Tile {
  int share;
  int row;
  int column;
};

// A block's walk over the tiles.
template <typename Kind, typename C>
struct Walk {
  const TileArgs& args;
  int rank = static_cast<int>(blockIdx.x) % C::kBlocks;
  int row = rank % C::kRows;  // of the block in its cluster
  int column = rank / C::kRows;

  // run(tile)
  template <typename Run>
  __device__ void each_tile(Run&& run) const {
    const int clusters = static_cast<int>(gridDim.x) / C::kBlocks;
    const int of_share = args.row_tiles * args.column_tiles;
    for (int i = static_cast<int>(blockIdx.x) / C::kBlocks; i < args.shares * of_share; i += clusters) {
      const int share = args.first_share + i / of_share;
      const int tile = i % of_share;
      const int first = tile / (kRasterRows * args.column_tiles) * kRasterRows;
      const int height = min(kRasterRows, args.row_tiles - first);
      const int rest = tile - first * args.column_tiles;
      run(Tile{.share = share < args.shares ? share : share - args.shares,
               .row = ((first + rest % height) * C::kRows + row) * kTileRows,
               .column = args.first_column + (rest / height * C::kColumns + column) * Kind::kColumns});
    }
  }
};

// One thread calls it.
template <typename Kind, typename C>
__device__ inline void bring_tiles(const CUtensorMap& x,
                                   const CUtensorMap& w,
                                   const Walk<Kind, C>& walk,
                                   const Memory<Kind>& memory) {
  constexpr uint32_t kColumnOfBlocks = (1u << C::kRows) - 1;
  uint32_t row_of_blocks = 0;
  for (int i = 0; i < C::kColumns; ++i) row_of_blocks |= 1u << (walk.row + i * C::kRows);
  const auto x_readers = static_cast<uint16_t>(row_of_blocks);
  const auto w_readers = static_cast<uint16_t>(kColumnOfBlocks << (walk.column * C::kRows));
  const int w_at = walk.row * C::kWRows;  // of a stage's rows of W
  const uint64_t policy = policy_read_normally();
  Cursor<Kind::kStages> cursor;
  walk.each_tile([&](const Tile& tile) {
    const int x_row = tile.share * walk.args.rows + tile.row;
    const int w_row = w_at / kHalfRows * walk.args.half_stride + tile.column + w_at % kHalfRows;
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      uint64_t* full = memory.full + cursor.stage;
      barrier_wait(memory.empty + cursor.stage, cursor.parity ^ 1);
      barrier_arrive_expecting(full, Memory<Kind>::kStageBytes);
      const int at = step * kStageColumns;
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
  });
}

// What a warpgroup does with 64 rows of a block's tiles. Its sums lie as device/wgmma.cuh says: those of the
// tile's first 128 rows of W, then those of its second.
template <typename T, typename Kind, typename C>
struct Multiplier {
  const Memory<Kind>& memory;
  const Walk<Kind, C>& walk;
  const int group;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Cursor<Kind::kStages> cursor;
  // The tile that stands in shared memory, and the first of its boxes that has not been stored.
  const CUtensorMap* y = nullptr;
  int out_row = 0;
  int out_column = 0;
  int next_box = Memory<Kind>::kOutBoxes;

  // The blocks above, below and beside this one write to its stages, and so does itself.
  __device__ void leave(int stage) const {
    if (thread < C::kBlocks && (thread % C::kRows == walk.row || thread / C::kRows == walk.column))
      barrier_arrive_in_block(memory.empty + stage, thread);
  }

  __device__ void multiply(float (&sums)[kSums]) {
    int behind = -1;  // a stage that products still read
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      products_begin(sums);
      const uint64_t x = swizzled_tile(memory.x(cursor.stage, group));
      const uint64_t w = swizzled_tile(memory.w(cursor.stage));
#pragma unroll
      for (int k = 0; k < kRowBytes / 16; k += 2)  // that unit is theirs
        multiply_256_tiles(T(), sums, x + k, w + k, step > 0 || k > 0);
      products_issued();
      products_done<1>(sums);
      if (behind >= 0) leave(behind);
      behind = cursor.stage;
      cursor.advance();
      if constexpr (!Kind::kStoresAtOnce) {
        if ((step + 1) % walk.args.steps_a_box == 0) store_next();
      }
    }
    products_done<0>(sums);
    leave(behind);
  }
  // Where no row of x is. A thread that fell behind by a round of the ring would miss phases: without
  // products to wait for each other in, threads meet.
  __device__ void pass_over() {
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      barrier_of_group(group);
      leave(cursor.stage);
      cursor.advance();
    }
  }

  // Two neighbouring columns of a row of y.
  __device__ static uint32_t pair_at(const float (&sums)[kSums], int at) {
    const uint32_t pair = pack_pair(T(), sums[at], sums[at + 1]);
    if constexpr (std::is_same_v<Kind, Plain>) return pair;
    const float2 gate = pair_of(T(), pair);
    const float2 up = pair_of(T(), pack_pair(T(), sums[at + kSums / 2], sums[at + kSums / 2 + 1]));
    return pack_pair(T(), silu_approx(gate.x) * up.x, silu_approx(gate.y) * up.y);
  }
  __device__ void store_next() {
    if (next_box == Memory<Kind>::kOutBoxes) return;
    if (thread == 0) {
      store_box(*y, out_column + next_box * kStageColumns, out_row, memory.out(group, next_box));
      stores_issued();
    }
    ++next_box;
  }
  __device__ void store_rest() {
#pragma unroll 1
    while (next_box < Memory<Kind>::kOutBoxes) store_next();
  }
  // Through shared memory, permuted as TMA expects it, which also leaves out rows behind the last.
  __device__ void store(const float (&sums)[kSums], const CUtensorMap& map, int row, int column) {
    constexpr int kBoxPieces = kRowBytes / 16;
    store_rest();  // of the tile before
    if (thread == 0) stores_read();
    barrier_of_group(group);
    const int lane = thread % kWarpSize;
    const int lane_row = thread / kWarpSize * 16 + lane % 16;  // that this lane names
#pragma unroll
    for (int piece = 0; piece < Kind::kColumns / 8; piece += 2) {
      uint32_t pairs[4];  // of eight columns two rows that are eight apart, then of the next eight columns
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = pair_at(sums, 4 * piece + 2 * i);
      const int at = piece % kBoxPieces + lane / 16;
      auto* to = reinterpret_cast<uint4*>(memory.out(group, piece / kBoxPieces) + lane_row * kRowBytes);
      store_matrices(to + (at ^ lane_row % 8), pairs);
    }
    release_to_products();
    barrier_of_group(group);
    y = &map;
    out_row = row;
    out_column = column;
    next_box = 0;
    if constexpr (Kind::kStoresAtOnce) store_rest();
  }
};

// Grid: clusters, as many as run at the same time or there are tiles.
template <typename T, typename Kind, typename C>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const __grid_constant__ CUtensorMap x,
                   const __grid_constant__ CUtensorMap w,
                   const __grid_constant__ OutMaps<Kind::kMostShares> y,
                   const __grid_constant__ TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  constexpr int kStages = Kind::kStages;
  __shared__ uint64_t barriers[2 * kStages];
  const Memory<Kind> memory{raw + (1024 - shared_address(raw) % 1024) % 1024, barriers, barriers + kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(memory.full + i, 1);
      barrier_init(memory.empty + i, C::kSharers * kMultipliers);
    }
    barrier_init_done();
  }
  meet_cluster();  // before a block fills another's stages
  // What the second of two kernels reads is there when it begins: it may once all blocks of the first have
  // waited for it.
  if (!args.second) wait_for_previous();
  let_next_start();
  const Walk<Kind, C> walk{args};
  // The same in all lanes, and the compiler is to know it: products are issued by whole warps.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kMultipliers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopierRegisters));
    if (threadIdx.x == kMultipliers * kGroupThreads) bring_tiles(x, w, walk, memory);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
    Multiplier<T, Kind, C> multiplier{.memory = memory, .walk = walk, .group = group};
    float sums[kSums] = {};
    walk.each_tile([&](const Tile& tile) {
      const int row = tile.row + group * kGroupRows;
      if (row >= args.rows) return multiplier.pass_over();
      multiplier.multiply(sums);
      multiplier.store(sums, y.of_share[tile.share], row, tile.column);
    });
    multiplier.store_rest();
    if (multiplier.thread == 0) stores_done();
    __syncwarp();
  }
  if (args.second) wait_for_previous();
  meet_cluster();  // others may still say that they have left this block's stages
#endif
}

// Some columns of y by clusters of one form.
struct Portion {
  int first_column = 0;
  int columns = 0;
  int clusters = 0;  // that run at the same time
  bool second = false;

  template <typename Kind, typename C>
  int64_t rounds(int64_t rows) const {
    const int64_t tiles = ceil_div(rows, C::kRows * kTileRows) * (columns / Kind::kColumns / C::kColumns);
    return columns == 0 ? 0 : ceil_div(tiles, clusters);
  }
};

// y's shares in the order of their rows.
struct Outputs {
  std::span<void* const> shares;
  int first = 0;
};

template <typename T, typename Kind, typename C>
cudaError_t launch_portion(const TensorMapEncoder& encoder,
                           const MatmulShape& shape,
                           const MatmulOperands& operands,
                           const Outputs& outputs,
                           const Portion& portion,
                           cudaStream_t stream) {
  constexpr bool kGates = std::is_same_v<Kind, Gated>;
  const auto shares = static_cast<int>(outputs.shares.size());
  const int64_t rows = shape.m / shares;
  const TileArgs args{
      .rows = static_cast<int>(rows),
      .half_stride = kGates ? static_cast<int>(shape.columns()) : kHalfRows,
      .steps = static_cast<int>(shape.k / kStageColumns),
      .steps_a_box = std::max(1, static_cast<int>(shape.k / kStageColumns) / Memory<Kind>::kOutBoxes),
      .row_tiles = static_cast<int>(ceil_div(rows, C::kRows * kTileRows)),
      .column_tiles = portion.columns / Kind::kColumns / C::kColumns,
      .first_column = portion.first_column,
      .shares = shares,
      .first_share = outputs.first,
      .second = portion.second};
  CUtensorMap x;
  CUtensorMap w;
  OutMaps<Kind::kMostShares> y;
  cudaError_t error =
      encoder.encode(rows_of(shape.in, operands.x, shape.k, shape.m, shape.x_stride, C::kXRows), x);
  if (error == cudaSuccess)
    error = encoder.encode(rows_of(shape.in, operands.w, shape.k, shape.n, shape.k, C::kWRows), w);
  for (int i = 0; i < shares && error == cudaSuccess; ++i) {
    const void* share = outputs.shares[static_cast<size_t>(i)];
    error = encoder.encode(rows_of(shape.out, share, shape.columns(), rows, shape.y_stride, kGroupRows),
                           y.of_share[i]);
  }
  auto* kernel = multiply_tiles<T, Kind, C>;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Kind>);
  if (error != cudaSuccess) return error;
  const int clusters = std::min(portion.clusters, shares * args.row_tiles * args.column_tiles);
  const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(clusters * C::kBlocks)),
                                .threads = kThreads,
                                .stream = stream,
                                .shared_bytes = kSharedBytes<Kind>,
                                .cluster_blocks = C::kBlocks};
  return launch_overlapped(kernel, launch, x, w, y, args);
}

// Clusters of eight that find room at the same time.
int eights_at_once() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {Eight::kBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(Eight::kBlocks);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes<Gated>;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  auto* kernel = multiply_tiles<__nv_bfloat16, Gated, Eight>;
  cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes<Gated>);
  if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error == cudaSuccess) return clusters;
  (void)cudaGetLastError();
  return 0;
}

// How the columns of a gated y are divided between clusters of eight and pairs beside them: so that both end
// early, and of ways that are as good the one with the fewest pairs' tiles. All to pairs where eights would
// not pay: of rows that do not fill them.
struct Division {
  Portion eights;
  Portion pairs;
};
Division divide(const MatmulShape& shape, int processors, int eights) {
  const int columns = static_cast<int>(shape.columns());
  Division best{.eights = {}, .pairs = {.columns = columns, .clusters = processors / Pair::kBlocks}};
  const int rest = (processors - eights * Eight::kBlocks) / Pair::kBlocks;
  const bool fills = shape.m % (Eight::kRows * kTileRows) == 0;
  if (eights == 0 || !fills) return best;
  int64_t least = best.pairs.rounds<Gated, Pair>(shape.m);
  for (int of_pairs = 0; of_pairs <= columns / 4; of_pairs += Gated::kColumns) {
    if ((columns - of_pairs) % (Eight::kColumns * Gated::kColumns) != 0 || (of_pairs > 0 && rest == 0))
      continue;
    const Portion first{.columns = columns - of_pairs, .clusters = eights};
    const Portion second{
        .first_column = columns - of_pairs, .columns = of_pairs, .clusters = rest, .second = true};
    const int64_t rounds = std::max(first.rounds<Gated, Eight>(shape.m), second.rounds<Gated, Pair>(shape.m));
    const bool better = best.eights.columns == 0 ? rounds <= least : rounds < least;
    if (!better) continue;
    least = rounds;
    best = {first, second};
  }
  return best;
}

template <typename T>
cudaError_t launch_gated_as(const HopperDevice& device,
                            const Division& division,
                            const MatmulShape& shape,
                            const MatmulOperands& operands,
                            cudaStream_t stream) {
  void* const y[] = {operands.y};
  cudaError_t error = cudaSuccess;
  if (division.eights.columns > 0)
    error = launch_portion<T, Gated, Eight>(device.encoder, shape, operands, {y}, division.eights, stream);
  if (error == cudaSuccess && division.pairs.columns > 0)
    error = launch_portion<T, Gated, Pair>(device.encoder, shape, operands, {y}, division.pairs, stream);
  return error;
}

bool takes(const HopperDevice& device, const MatmulShape& shape) {
  const bool types = (shape.in == DType::kBF16 || shape.in == DType::kF16) && shape.out == shape.in &&
                     !shape.f8_weight && !shape.has_bias;
  const bool aligned =
      shape.alignment >= 16 && shape.x_stride % kVecWidth == 0 && shape.y_stride % kVecWidth == 0;
  return device.supported && types && aligned && shape.m >= kLeastRows && shape.k > 0 &&
         shape.k % kStageColumns == 0 && shape.n % (2 * kHalfRows) == 0;
}

}  // namespace

PromptLinear::PromptLinear(const HopperDevice& device)
    : device_(device), eights_(device.supported ? eights_at_once() : 0) {}

bool PromptLinear::takes_gated(const MatmulShape& shape) const {
  return shape.gated && takes(device_, shape);
}

cudaError_t PromptLinear::launch_gated(const MatmulShape& shape,
                                       const MatmulOperands& operands,
                                       cudaStream_t stream) const {
  const Division division = divide(shape, device_.processors, eights_);
  return shape.in == DType::kBF16 ? launch_gated_as<__nv_bfloat16>(device_, division, shape, operands, stream)
                                  : launch_gated_as<__half>(device_, division, shape, operands, stream);
}

bool PromptLinear::takes_shares(const MatmulShape& shape, int shares) const {
  return !shape.gated && shares <= kMostShares && shape.m % shares == 0 && takes(device_, shape);
}

cudaError_t PromptLinear::launch_shares(const MatmulShape& shape,
                                        const MatmulOperands& operands,
                                        std::span<void* const> shares,
                                        int first,
                                        cudaStream_t stream) const {
  const Portion all{.columns = static_cast<int>(shape.n), .clusters = device_.processors / Pair::kBlocks};
  const Outputs outputs{.shares = shares, .first = first};
  return shape.in == DType::kBF16
             ? launch_portion<__nv_bfloat16, Plain, Pair>(
                   device_.encoder, shape, operands, outputs, all, stream)
             : launch_portion<__half, Plain, Pair>(device_.encoder, shape, operands, outputs, all, stream);
}

}  // namespace llm_dist::kernels
