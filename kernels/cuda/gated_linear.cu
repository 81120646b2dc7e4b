// A block stays on its processor and takes tile after tile: 128 rows of x by 128 rows of the gate and the 128
// rows of up that belong to them, so that a thread gets the sums of both and rounds, gates and stores them
// without a product in memory. The scheme is that of CUTLASS's persistent cooperative kernel for Hopper
// (warp-specialized, its producer and consumers joined by barriers around a ring of stages):
//
// - One thread asks TMA for 64 columns of x and W at a time, as many stages ahead as shared memory holds, and
//   goes on to the next tile's while this one's results are stored.
// - Two warpgroups multiply, 64 rows of x each, so that what is brought of W is read by both. The products of
//   one stage are under way while the next stage is waited for.
// - Two blocks with rows of x below each other are a cluster: one brings the gate's rows for both, the other
//   up's. A processor at its power limit pays for what is moved, and so half of W's way from L2 is saved.
// - Tiles are taken in an order in which those that run at the same time share rows of x and of W in L2.
//
// Sums are rounded to the output's type before the gate is applied, as they are where a product stands in
// memory in between.
#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/gated_linear.h"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {
namespace {

constexpr int kMultipliers = 2;  // warpgroups
constexpr int kThreads = (kMultipliers + 1) * kGroupThreads;
constexpr int kGroupRows = 64;  // of x: what one product takes
constexpr int kTileRows = kMultipliers * kGroupRows;
constexpr int kTileColumns = 128;    // of y: as many rows of the gate and of up
constexpr int kSums = kTileColumns;  // of a thread: half of the gate's, half of up's
constexpr int kRowBytes = 128;       // TMA's widest swizzle
constexpr int kStageColumns = kRowBytes / 2;
constexpr int kClusterBlocks = 2;
constexpr int kStages = 4;
// Clusters that run at the same time have so many tiles below each other; the others are beside them.
constexpr int kRasterRows = 8;
constexpr int64_t kLeastRows = 256;
// Registers that a thread keeps or gets: 65,536 in all.
constexpr int kCopierRegisters = 24;
constexpr int kMultiplierRegisters = 240;

struct GateArgs {
  int rows = 0;       // of y
  int columns = 0;    // of y
  int steps = 0;      // stages that hold all columns of x
  int row_tiles = 0;  // of clusters
  int column_tiles = 0;
};

// Rows of 128 bytes, whose 16-byte pieces TMA permutes.
struct Memory {
  static constexpr int kXBytes = kTileRows * kRowBytes;
  static constexpr int kHalfBytes = kTileColumns * kRowBytes;  // of W: the gate's rows, then up's
  static constexpr int kStageBytes = kXBytes + 2 * kHalfBytes;
  static constexpr int kOutBoxBytes = kGroupRows * kRowBytes;
  static constexpr int kOutBoxes = kTileColumns / kStageColumns;  // of a warpgroup, side by side in y
  static constexpr int kBytes = kStages * kStageBytes + kMultipliers * kOutBoxes * kOutBoxBytes;

  std::byte* base;  // at a multiple of 1024, the same in all blocks of a cluster
  uint64_t* full;   // barriers of the stages
  uint64_t* empty;

  __device__ std::byte* x(int stage, int group) const {
    return base + stage * kStageBytes + group * kGroupRows * kRowBytes;
  }
  __device__ std::byte* w(int stage, int half) const {
    return base + stage * kStageBytes + kXBytes + half * kHalfBytes;
  }
  __device__ std::byte* out(int group, int box) const {
    return base + kStages * kStageBytes + (group * kOutBoxes + box) * kOutBoxBytes;
  }
};

// A block's walk over the tiles.
struct Walk {
  const GateArgs& args;
  int rank = static_cast<int>(blockIdx.x) % kClusterBlocks;

  // run(row, column): of the tile's first sum in y.
  template <typename Run>
  __device__ void each_tile(Run&& run) const {
    const int clusters = static_cast<int>(gridDim.x) / kClusterBlocks;
    const int tiles = args.row_tiles * args.column_tiles;
    for (int tile = static_cast<int>(blockIdx.x) / kClusterBlocks; tile < tiles; tile += clusters) {
      const int first = tile / (kRasterRows * args.column_tiles) * kRasterRows;
      const int height = min(kRasterRows, args.row_tiles - first);
      const int rest = tile - first * args.column_tiles;
      run(((first + rest % height) * kClusterBlocks + rank) * kTileRows, rest / height * kTileColumns);
    }
  }
};

// One thread calls it.
__device__ inline void bring_tiles(const CUtensorMap& x,
                                   const CUtensorMap& w,
                                   const Walk& walk,
                                   const Memory& memory) {
  constexpr auto kAllBlocks = static_cast<uint16_t>((1 << kClusterBlocks) - 1);
  const uint64_t policy = policy_read_normally();
  Cursor<kStages> cursor;
  walk.each_tile([&](int row, int column) {
#pragma unroll 1
    for (int step = 0; step < walk.args.steps; ++step) {
      uint64_t* full = memory.full + cursor.stage;
      barrier_wait(memory.empty + cursor.stage, cursor.parity ^ 1);
      barrier_arrive_expecting(full, Memory::kStageBytes);
      load_box(memory.x(cursor.stage, 0), x, step * kStageColumns, row, full, policy);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (half % kClusterBlocks != walk.rank) continue;
        load_box_in_blocks(memory.w(cursor.stage, half),
                           w,
                           step * kStageColumns,
                           half * walk.args.columns + column,
                           full,
                           kAllBlocks,
                           policy);
      }
      cursor.advance();
    }
  });
}

// What a warpgroup does with 64 rows of a block's tiles. Its sums lie as device/wgmma.cuh says: 128 columns
// of the gate, then those of up.
template <typename T>
struct Multiplier {
  const Memory& memory;
  const int steps;
  const int group;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  Cursor<kStages> cursor;

  // Every block of the cluster writes to this one's stages.
  __device__ void leave(int stage) const {
    if (thread < kClusterBlocks) barrier_arrive_in_block(memory.empty + stage, thread);
  }

  __device__ void multiply(float (&sums)[kSums]) {
    int behind = -1;  // a stage that products still read
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      products_begin(sums);
      const uint64_t x = swizzled_tile(memory.x(cursor.stage, group));
      const uint64_t w = swizzled_tile(memory.w(cursor.stage, 0));
#pragma unroll
      for (int k = 0; k < kRowBytes / 16; k += 2)  // that unit is theirs
        multiply_256_tiles(T(), sums, x + k, w + k, step > 0 || k > 0);
      products_issued();
      products_done<1>(sums);
      if (behind >= 0) leave(behind);
      behind = cursor.stage;
      cursor.advance();
    }
    products_done<0>(sums);
    leave(behind);
  }
  // Where no row of x is. A thread that fell behind by a round of the ring would miss phases: without
  // products to wait for each other in, threads meet.
  __device__ void pass_over() {
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      barrier_wait(memory.full + cursor.stage, cursor.parity);
      barrier_of_group(group);
      leave(cursor.stage);
      cursor.advance();
    }
  }

  // Two neighbouring columns of a row.
  __device__ static uint32_t gated_pair(const float (&sums)[kSums], int at) {
    const float2 gate = pair_of(T(), pack_pair(T(), sums[at], sums[at + 1]));
    const float2 up = pair_of(T(), pack_pair(T(), sums[at + kSums / 2], sums[at + kSums / 2 + 1]));
    return pack_pair(T(), silu_approx(gate.x) * up.x, silu_approx(gate.y) * up.y);
  }
  // Through shared memory, permuted as TMA expects it, which also leaves out rows behind the last.
  __device__ void store(const float (&sums)[kSums], const CUtensorMap& y, int row, int column) const {
    constexpr int kBoxPieces = kRowBytes / 16;
    if (thread == 0) stores_read();  // the tile's before
    barrier_of_group(group);
    const int lane = thread % kWarpSize;
    const int out_row = thread / kWarpSize * 16 + lane % 16;  // that this lane names
#pragma unroll
    for (int piece = 0; piece < kTileColumns / 8; piece += 2) {
      uint32_t pairs[4];  // of eight columns two rows that are eight apart, then of the next eight columns
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = gated_pair(sums, 4 * piece + 2 * i);
      const int at = piece % kBoxPieces + lane / 16;
      auto* to = reinterpret_cast<uint4*>(memory.out(group, piece / kBoxPieces) + out_row * kRowBytes);
      store_matrices(to + (at ^ out_row % 8), pairs);
    }
    release_to_products();
    barrier_of_group(group);
    if (thread == 0) {
#pragma unroll
      for (int box = 0; box < Memory::kOutBoxes; ++box)
        store_box(y, column + box * kStageColumns, row, memory.out(group, box));
      stores_issued();
    }
  }
};

// Grid: clusters, as many as run at the same time or there are tiles.
template <typename T>
__global__ void __launch_bounds__(kThreads, 1) multiply_gated(const __grid_constant__ CUtensorMap x,
                                                              const __grid_constant__ CUtensorMap w,
                                                              const __grid_constant__ CUtensorMap y,
                                                              const __grid_constant__ GateArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * kStages];
  const Memory memory{raw + (1024 - shared_address(raw) % 1024) % 1024, barriers, barriers + kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(memory.full + i, 1);
      barrier_init(memory.empty + i, kClusterBlocks * kMultipliers);
    }
    barrier_init_done();
  }
  meet_cluster();  // before a block fills another's stages
  let_next_start();
  wait_for_previous();
  const Walk walk{args};
  // The same in all lanes, and the compiler is to know it: products are issued by whole warps.
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kMultipliers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCopierRegisters));
    if (threadIdx.x == kMultipliers * kGroupThreads) bring_tiles(x, w, walk, memory);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
    Multiplier<T> multiplier{.memory = memory, .steps = args.steps, .group = group};
    float sums[kSums] = {};
    walk.each_tile([&](int tile_row, int column) {
      const int row = tile_row + group * kGroupRows;
      if (row >= args.rows) return multiplier.pass_over();
      multiplier.multiply(sums);
      multiplier.store(sums, y, row, column);
    });
    if (multiplier.thread == 0) stores_read();
    __syncwarp();
  }
  meet_cluster();  // others may still say that they have left this block's stages
#endif
}

}  // namespace

template <typename T>
cudaError_t GatedLinear::launch_as(const MatmulShape& shape,
                                   const MatmulOperands& operands,
                                   cudaStream_t stream) const {
  const GateArgs args{.rows = static_cast<int>(shape.m),
                      .columns = static_cast<int>(shape.columns()),
                      .steps = static_cast<int>(shape.k / kStageColumns),
                      .row_tiles = static_cast<int>(ceil_div(shape.m, kClusterBlocks * kTileRows)),
                      .column_tiles = static_cast<int>(shape.columns() / kTileColumns)};
  CUtensorMap x;
  CUtensorMap w;
  CUtensorMap y;
  cudaError_t error =
      device_.encoder.encode(rows_of(shape.in, operands.x, shape.k, shape.m, shape.x_stride, kTileRows), x);
  if (error == cudaSuccess)
    error = device_.encoder.encode(rows_of(shape.in, operands.w, shape.k, shape.n, shape.k, kTileColumns), w);
  if (error == cudaSuccess) {
    error = device_.encoder.encode(
        rows_of(shape.out, operands.y, shape.columns(), shape.m, shape.y_stride, kGroupRows), y);
  }
  constexpr int kBytes = Memory::kBytes + 1024;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(multiply_gated<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int clusters = std::min(device_.processors / kClusterBlocks, args.row_tiles * args.column_tiles);
  const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(clusters * kClusterBlocks)),
                                .threads = kThreads,
                                .stream = stream,
                                .shared_bytes = kBytes,
                                .cluster_blocks = kClusterBlocks};
  return launch_overlapped(multiply_gated<T>, launch, x, w, y, args);
}

cudaError_t GatedLinear::launch(const MatmulShape& shape,
                                const MatmulOperands& operands,
                                cudaStream_t stream) const {
  return shape.in == DType::kBF16 ? launch_as<__nv_bfloat16>(shape, operands, stream)
                                  : launch_as<__half>(shape, operands, stream);
}

bool GatedLinear::takes(const MatmulShape& shape) const {
  const bool types = (shape.in == DType::kBF16 || shape.in == DType::kF16) && shape.out == shape.in &&
                     !shape.f8_weight && !shape.has_bias;
  const bool aligned =
      shape.alignment >= 16 && shape.x_stride % kVecWidth == 0 && shape.y_stride % kVecWidth == 0;
  return device_.supported && shape.gated && types && aligned && shape.m >= kLeastRows && shape.k > 0 &&
         shape.k % kStageColumns == 0 && shape.n % (2 * kTileColumns) == 0;
}

}  // namespace llm_dist::kernels
