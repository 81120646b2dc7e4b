// Products of prompts. A block stays on its processor and takes tile after tile: 128 rows of x by 256 of W,
// or by 192 where that many tiles keep more processors busy to the end. Of a gated product those are 128 rows
// of the gate and the 128 of up that belong to them, so that a thread gets the sums of both and gates and
// stores them without a product in memory. The scheme is that of CUTLASS's persistent cooperative kernel for
// Hopper (warp-specialized, its producer and consumers joined by barriers around a ring of stages):
//
// - One thread asks TMA for 64 columns of x and W at a time, 128 of codes, as many stages ahead as shared
//   memory holds, and goes on to the next tile's while this one's results are stored.
// - Two warpgroups multiply, 64 rows of x each, so that what is brought of W is read by both. The products of
//   one stage are under way while the next stage is waited for.
// - Blocks with rows of x below each other share what they bring of W, blocks beside each other what they
//   bring of x: each brings a part for all. A processor at its power limit pays for what is moved. Clusters
//   of four by two blocks bring half of what pairs do, but leave some processors empty, as a cluster lies
//   within one of the parts that a GPU is made of. Those get pairs of a second kernel with some tiles to
//   itself. It begins behind the first one's blocks, so as to take no place of theirs, and ends
//   behind them, for the kernels that follow to wait for one alone.
// - Tiles are taken in an order in which those that run at the same time share rows of x and of W in L2.
// - A tile's sums of 16-bit elements are rounded to the output's type as soon as they are complete, which
//   halves them, and wait in registers: they are gated, and stored in turns, while the next tile is
//   multiplied. Of a gated product that is also what is rounded where it stands in memory in between.
// - Codes are multiplied in halves of a tile, whose sums of a stage are added in float, and a tile is gated
//   and stored at once (device/prompt_codes.cuh).
// - y may be in shares, runs of rows with a place of their own each, another GPU's memory: all blocks end a
//   tile at the same time, and behind stores that wait for the link, loads wait, too, so the turns of a tile
//   are spread over the next one. Shares come one after the other, so that all but the last cross while there
//   is still something to multiply.
// - x may be in shares, too, of which other ranks have all but the first (device/handed_rows.cuh). Then y is
//   in the same shares, one behind the other, so that no tile reads rows of two.
#include <algorithm>
#include <array>

#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/prompt_codes.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prompt_linear.h"
#include "kernels/linear.h"

namespace llm_dist::kernels {
namespace {

using namespace prompt_products;

constexpr int64_t kLeastRows = 256;
static_assert(kMostOutputs == PromptLinear::kMostShares);
static_assert(Eight::kRows * kTileRows == PromptLinear::kClusterRows);
static_assert(kHandedRows % PromptLinear::kClusterRows == 0);

// Grid: clusters, as many as run at the same time or there are tiles.
template <typename T, typename Kind, typename C>
__global__ void __launch_bounds__(kThreads, 1)
    multiply_tiles(const __grid_constant__ CUtensorMap x,
                   const __grid_constant__ CUtensorMap w,
                   const __grid_constant__ OutMaps y,
                   const __grid_constant__ device::HandedRows handed,
                   const __grid_constant__ TileArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * Kind::kStages];
  const Memory<Kind> memory{
      raw + (1024 - shared_address(raw) % 1024) % 1024, barriers, barriers + Kind::kStages};
  if (threadIdx.x == 0) {
    for (int i = 0; i < Kind::kStages; ++i) {
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
    constexpr int kHanders = kGroupThreads / kWarpSize - 1;  // of a block: the warps behind the first one
    const int warp = static_cast<int>(threadIdx.x) / kWarpSize - kMultipliers * (kHanders + 1);
    if (threadIdx.x == kMultipliers * kGroupThreads) bring_tiles(x, w, walk, handed, memory);
    if (warp > 0 && handed.size > 0 && !args.second)
      hand_rows(
          handed, static_cast<int>(blockIdx.x) * kHanders + warp - 1, static_cast<int>(gridDim.x) * kHanders);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kMultiplierRegisters));
    using Multiplies = std::conditional_t<Kind::kCodes, CodeMultiplier<T, Kind, C>, Multiplier<T, Kind, C>>;
    Multiplies multiplier{{memory, walk, group}};
    float sums[Kind::kSums] = {};
    for (int i = walk.first(); i < args.tiles; i += walk.clusters()) {
      const Tile tile = multiplier.tile;
      const int row = tile.row + group * kGroupRows;
      if (row >= args.rows) {
        multiplier.pass_over(i + walk.clusters());
        continue;
      }
      multiplier.multiply(sums, i + walk.clusters());
      multiplier.keep(sums, y.of_share[tile.share], tile);
    }
    multiplier.store_rest();
    __syncwarp();
  }
  if (args.second) wait_for_previous();
  meet_cluster();  // others may still say that they have left this block's stages
#endif
}

// Some tiles of y by clusters of one form.
struct Portion {
  // Of all tiles of y. Of a second kernel all three are of the first one's clusters.
  int row_tiles = 0;
  int column_tiles = 0;
  int first_tile = 0;
  int tiles = 0;     // of its own clusters
  int clusters = 0;  // that run at the same time
  bool second = false;

  int64_t rounds() const { return ceil_div(tiles, clusters); }
};

template <typename Kind, typename C>
Portion all_tiles(const MatmulShape& shape, int64_t shares, int clusters) {
  const int row_tiles = static_cast<int>(ceil_div(shape.m / shares, C::kRows * kTileRows));
  const int column_tiles = static_cast<int>(ceil_div(shape.columns(), C::kColumns * Kind::kColumns));
  return {.row_tiles = row_tiles,
          .column_tiles = column_tiles,
          .tiles = static_cast<int>(shares) * row_tiles * column_tiles,
          .clusters = clusters};
}

// x's and y's rows, in shares of one length.
struct Shares {
  std::span<void* const> y;  // in the order of their rows
  int first = 0;
  device::HandedRows x;

  int64_t count() const { return static_cast<int64_t>(y.size()); }
};

template <typename T, typename Kind, typename C>
cudaError_t launch_portion(const TensorMapEncoder& encoder,
                           const MatmulShape& shape,
                           const MatmulOperands& operands,
                           const Shares& shares,
                           const Portion& portion,
                           cudaStream_t stream) {
  const int64_t rows = shape.m / shares.count();
  const int steps = static_cast<int>(shape.k / Kind::kStageColumns);
  const TileArgs args{.rows = static_cast<int>(rows),
                      .half_stride = Kind::kGates ? static_cast<int>(shape.columns()) : Kind::kHalfRows,
                      .steps = steps,
                      .steps_a_turn = std::max(1, steps / Kind::kTurns),
                      .row_tiles = portion.row_tiles,
                      .column_tiles = portion.column_tiles,
                      .first_tile = portion.first_tile,
                      .tiles = portion.tiles,
                      .first_share = shares.first,
                      .shares = static_cast<int>(shares.count()),
                      .second = portion.second,
                      .x_scales = operands.x_scales,
                      .w_scales = operands.w_scales,
                      .y_scales = operands.y_scales,
                      .w_rows = static_cast<int>(shape.n)};
  const DType in = Kind::kCodes ? DType::kF8E4M3 : shape.in;
  CUtensorMap x;
  CUtensorMap w;
  OutMaps y;
  cudaError_t error = encoder.encode(rows_of(in, operands.x, shape.k, shape.m, shape.x_stride, C::kXRows), x);
  if (error == cudaSuccess)
    error = encoder.encode(rows_of(in, operands.w, shape.k, shape.n, shape.k, C::template kWRows<Kind>), w);
  for (size_t i = 0; i < shares.y.size() && error == cudaSuccess; ++i) {
    const DType out = Kind::kGivesCodes ? DType::kF8E4M3 : shape.out;
    error = encoder.encode(rows_of(out, shares.y[i], shape.columns(), rows, shape.y_stride, kGroupRows),
                           y.of_share[i]);
  }
  auto* kernel = multiply_tiles<T, Kind, C>;
  constexpr int kSharedBytes = Memory<Kind>::kSharedBytes;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  const int clusters = std::min(portion.clusters, args.tiles);
  const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(clusters * C::kBlocks)),
                                .threads = kThreads,
                                .stream = stream,
                                .shared_bytes = kSharedBytes,
                                .cluster_blocks = C::kBlocks};
  return launch_overlapped(kernel, launch, x, w, y, shares.x, args);
}

// Clusters of eight that find room at the same time: of every kind, as none has room for two blocks on a
// processor.
int eights_at_once() {
  using Kind = GatedOf<Elements::kBits16>;
  const OverlappedLaunch launch{.grid = dim3(Eight::kBlocks),
                                .threads = kThreads,
                                .shared_bytes = Memory<Kind>::kSharedBytes,
                                .cluster_blocks = Eight::kBlocks};
  return clusters_at_once(multiply_tiles<__nv_bfloat16, Kind, Eight>, launch);
}

// How the tiles of y are divided between clusters of eight and pairs beside them: so that both end early, and
// of ways that are as good the one with the fewest pairs' tiles. Pairs get the first ones, whose rows of x
// are there at once where others are still to come. All to pairs where eights would not pay: of rows or
// columns that do not fill them. Without early starts nothing runs beside eights.
struct Division {
  Portion eights;
  Portion pairs;

  int64_t rounds() const {
    return std::max(eights.tiles > 0 ? eights.rounds() : 0, pairs.tiles > 0 ? pairs.rounds() : 0);
  }
};
template <typename Kind>
Division divide(const MatmulShape& shape, int64_t shares, int processors, int eights) {
  constexpr int kPairs = Eight::kBlocks / Pair::kBlocks;  // in the place of an eight
  Division best{.eights = {}, .pairs = all_tiles<Kind, Pair>(shape, shares, processors / Pair::kBlocks)};
  // Of narrow tiles there may be more than fill the columns: what that takes is among their rounds.
  const bool fills_columns = shape.columns() % (Eight::kColumns * Kind::kColumns) == 0;
  const bool fills =
      shape.m % (shares * PromptLinear::kClusterRows) == 0 && (fills_columns || Kind::kWRows < kMostWRows);
  if (eights == 0 || !fills) return best;
  const Portion all = all_tiles<Kind, Eight>(shape, shares, eights);
  const int rest = starts_kernels_early() ? (processors - eights * Eight::kBlocks) / Pair::kBlocks : 0;
  const int most = rest > 0 ? all.tiles / 4 : 0;
  int64_t least = best.pairs.rounds() + 1;
  for (int of_pairs = 0; of_pairs <= most; ++of_pairs) {
    Portion first = all;
    first.first_tile = of_pairs;
    first.tiles -= of_pairs;
    Portion second = all;
    second.tiles = of_pairs * kPairs;
    second.clusters = std::max(rest, 1);
    second.second = true;
    const int64_t rounds = std::max(first.rounds(), second.rounds());
    if (rounds >= least) continue;
    least = rounds;
    best = {first, second};
  }
  return best;
}

template <typename T, typename Kind>
cudaError_t launch_divided(const HopperDevice& device,
                           const Division& division,
                           const MatmulShape& shape,
                           const MatmulOperands& operands,
                           const Shares& shares,
                           cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  if (division.eights.tiles > 0)
    error = launch_portion<T, Kind, Eight>(device.encoder, shape, operands, shares, division.eights, stream);
  if (error == cudaSuccess && division.pairs.tiles > 0)
    error = launch_portion<T, Kind, Pair>(device.encoder, shape, operands, shares, division.pairs, stream);
  return error;
}

// Whether narrow tiles are done before wide ones are. They bring more of x for what they multiply, which
// takes some percent; and columns that y does not have take power.
bool is_better(const Division& narrow, const Division& wide, const MatmulShape& shape) {
  constexpr int kMore = 105;  // percent
  constexpr int kMostColumns = 110;
  using Narrow = NarrowOf<Elements::kBits16>;
  const int64_t columns = ceil_div(shape.columns(), Narrow::kColumns) * Narrow::kColumns;
  return columns * 100 <= shape.columns() * kMostColumns &&
         narrow.rounds() * Narrow::kWRows * kMore < wide.rounds() * PlainOf<Elements::kBits16>::kWRows * 100;
}

// launch(T()) with y's elements; codes are the same beside all of them.
template <typename Kind, typename Launch>
cudaError_t with_output(const MatmulShape& shape, Launch&& launch) {
  if constexpr (!Kind::kGivesCodes) {
    if (shape.out == DType::kF16) return launch(__half());
  }
  return launch(__nv_bfloat16());
}

// Of x and y, which have the same ones.
int64_t count_shares(const MatmulOperands& operands) { return std::max(1, operands.handed.size); }

template <typename Kind>
cudaError_t launch_as(const HopperDevice& device,
                      const Division& division,
                      const MatmulShape& shape,
                      const MatmulOperands& operands,
                      cudaStream_t stream) {
  const int64_t count = count_shares(operands);
  const int64_t share_bytes =
      shape.m / count * shape.y_stride * (Kind::kGivesCodes ? 1 : dtype_bytes(shape.out));
  std::array<void*, kMostOutputs> y{};
  for (int64_t i = 0; i < count; ++i)
    y[static_cast<size_t>(i)] = static_cast<std::byte*>(operands.y) + i * share_bytes;
  const Shares shares{.y = std::span(y).first(static_cast<size_t>(count)),
                      .first = operands.handed.rank,
                      .x = operands.handed};
  return with_output<Kind>(shape, [&](auto type) {
    return launch_divided<decltype(type), Kind>(device, division, shape, operands, shares, stream);
  });
}

template <Elements kElements>
cudaError_t launch_plain_of(const HopperDevice& device,
                            int eights,
                            const MatmulShape& shape,
                            const MatmulOperands& operands,
                            cudaStream_t stream) {
  using Wide = PlainOf<kElements>;
  using Narrow = NarrowOf<kElements>;
  const int64_t shares = count_shares(operands);
  const Division wide = divide<Wide>(shape, shares, device.processors, eights);
  const Division narrow = divide<Narrow>(shape, shares, device.processors, eights);
  return is_better(narrow, wide, shape) ? launch_as<Narrow>(device, narrow, shape, operands, stream)
                                        : launch_as<Wide>(device, wide, shape, operands, stream);
}

template <Elements kElements>
cudaError_t launch_gated_of(const HopperDevice& device,
                            int eights,
                            const MatmulShape& shape,
                            const MatmulOperands& operands,
                            cudaStream_t stream) {
  using Kind = GatedOf<kElements>;
  const Division division = divide<Kind>(shape, count_shares(operands), device.processors, eights);
  return launch_as<Kind>(device, division, shape, operands, stream);
}

template <Elements kElements>
cudaError_t launch_shares_of(const HopperDevice& device,
                             const MatmulShape& shape,
                             const MatmulOperands& operands,
                             const Shares& shares,
                             cudaStream_t stream) {
  using Kind = PlainOf<kElements>;
  const Portion all = all_tiles<Kind, Pair>(shape, shares.count(), device.processors / Pair::kBlocks);
  return with_output<Kind>(shape, [&](auto type) {
    return launch_portion<decltype(type), Kind, Pair>(device.encoder, shape, operands, shares, all, stream);
  });
}

// launch(an integral_constant of what `shape` has).
template <typename Launch>
cudaError_t with_elements(const MatmulShape& shape, Launch&& launch) {
  if (!shape.f8_weight) return launch(std::integral_constant<Elements, Elements::kBits16>());
  if (!shape.grouped_codes) return launch(std::integral_constant<Elements, Elements::kCodes>());
  return launch(std::integral_constant<Elements, Elements::kGroupedCodes>());
}

bool takes(const HopperDevice& device, const MatmulShape& shape) {
  const bool types = (shape.in == DType::kBF16 || shape.in == DType::kF16) && shape.out == shape.in &&
                     !shape.has_bias && (shape.f8_weight || !shape.has_codes());
  const int stage_columns =
      shape.f8_weight ? GatedOf<Elements::kCodes>::kStageColumns : GatedOf<Elements::kBits16>::kStageColumns;
  const bool aligned =
      shape.alignment >= 16 && shape.x_stride % kVecWidth == 0 && shape.y_stride % kVecWidth == 0;
  return device.supported && types && aligned && shape.m >= kLeastRows && shape.k > 0 &&
         shape.k % stage_columns == 0 && shape.n % kMostWRows == 0;
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
  return with_elements(shape, [&](auto elements) {
    return launch_gated_of<decltype(elements)::value>(device_, eights_, shape, operands, stream);
  });
}

bool PromptLinear::takes_plain(const MatmulShape& shape) const {
  return !shape.gated && takes(device_, shape);
}

cudaError_t PromptLinear::launch_plain(const MatmulShape& shape,
                                       const MatmulOperands& operands,
                                       cudaStream_t stream) const {
  return with_elements(shape, [&](auto elements) {
    return launch_plain_of<decltype(elements)::value>(device_, eights_, shape, operands, stream);
  });
}

bool PromptLinear::takes_handed(const MatmulShape& shape, int shares) const {
  return takes(device_, shape) && shape.f8_weight == shape.x_codes && shares <= kMostShares &&
         shape.m % (shares * kClusterRows) == 0 && shape.x_stride == shape.k;
}

bool PromptLinear::takes_shares(const MatmulShape& shape, int shares) const {
  return takes_plain(shape) && shares <= kMostShares && shape.m % shares == 0;
}

cudaError_t PromptLinear::launch_shares(const MatmulShape& shape,
                                        const MatmulOperands& operands,
                                        std::span<void* const> shares,
                                        int first,
                                        cudaStream_t stream) const {
  const Shares of_y{.y = shares, .first = first};
  return with_elements(shape, [&](auto elements) {
    return launch_shares_of<decltype(elements)::value>(device_, shape, operands, of_y, stream);
  });
}

}  // namespace llm_dist::kernels
