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

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/prompt_products.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prompt_linear.h"

namespace llm_dist::kernels {
namespace {

using namespace prompt_products;

constexpr int64_t kLeastRows = 256;
static_assert(kMostOutputs == PromptLinear::kMostShares);

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
