// A block takes a strip of 64 rows of W and all or a part of its columns. The blocks of one strip are a
// cluster and add up what each has through their shared memory, in the order of the columns. A strip of a
// gated product has eight rows of the gate and the eight of what it lets through in turns, so that a thread
// gets the sums of both.
//
// One warp asks TMA for tiles, as many ahead as shared memory holds. Of W it does so before the kernel in
// front has ended: memory has work to do while kernels change. Four warps multiply; the rows of x are the
// columns of the product, so that few of them cost little.
//
// W in f8_e4m3 is widened on its way to the registers that the product takes it from; x stays as it is, and
// sums are scaled at the end. Two such blocks share a processor, so that one widens while the other
// multiplies.
#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/streamed_linear.h"
#include "src/device/cuda/cuda_error.h"

namespace llm_dist::kernels {
namespace {

constexpr int kStripRows = 64;  // of W: what one product takes
constexpr int kMultipliers = 128;
constexpr int kThreads = kMultipliers + kWarpSize;
constexpr int kRowBytes = 128;  // TMA's widest swizzle
constexpr int kBoxColumns = kRowBytes / 2;
constexpr int kBoxes = 2;  // of 16-bit elements, side by side in a stage
constexpr int kStageColumns = kBoxes * kBoxColumns;
static_assert(kStageColumns == kRowBytes);            // one box of 8-bit elements
constexpr int kWeightBytes = kStripRows * kRowBytes;  // of a box
constexpr int kSharedBytes = 220 << 10;
#ifdef LLM_DIST_SM90A
constexpr bool kCompiled = true;
#else
constexpr bool kCompiled = false;  // for other GPUs: there the kernel has no body
#endif
constexpr int kGroupRows = 8;  // of W, side by side in a gated strip
constexpr int kGroups = kStripRows / (2 * kGroupRows);
constexpr int kMostParts = 8;  // blocks of a cluster that every device takes
constexpr int64_t kMostRows = 64;
// Beyond, widening W costs more than the library's rounding of x.
constexpr int64_t kMostRowsOfF8 = 32;
constexpr int kFewTokens = 16;
constexpr int64_t kLeastColumns = 1024;  // of a part, where there is a choice

struct StreamArgs {
  int rows = 0;     // of x
  int columns = 0;  // of y
  int steps = 0;    // stages that hold all columns of W
  int parts = 1;    // of them
  int64_t y_stride = 0;
  bool floats = false;  // y
  bool gated = false;
};

// kF8: of W; else it has the elements of x. kTokens: columns of the product.
template <bool kF8, int kTokens>
struct Stages {
  static constexpr int kBlocks = kF8 ? 2 : 1;  // of a processor
  static constexpr int kWeightBoxes = kF8 ? 1 : kBoxes;
  static constexpr int kWeightColumns = kStageColumns / kWeightBoxes;  // of a box
  static constexpr int kReaders = kF8 ? kMultipliers / kWarpSize : 1;  // who say that a stage is empty
  static constexpr int kXBytes = kTokens * kRowBytes;
  static constexpr int kBytes = kWeightBoxes * kWeightBytes + kBoxes * kXBytes;
  static constexpr int kCount = (kSharedBytes / kBlocks - 1024) / kBytes;
  static_assert(kCount >= 2);
  std::byte* memory;
  uint64_t* full;
  uint64_t* empty;

  __device__ std::byte* weights(int stage, int box) const {
    return memory + stage * kBytes + box * kWeightBytes;
  }
  __device__ std::byte* x(int stage, int box) const {
    return memory + stage * kBytes + kWeightBoxes * kWeightBytes + box * kXBytes;
  }
};

// What a block does.
struct Share {
  int strip;
  int part;
  int begin;  // steps [begin, end)
  int end;
  __device__ explicit Share(const StreamArgs& args)
      : strip(static_cast<int>(blockIdx.x) / args.parts),
        part(static_cast<int>(blockIdx.x) % args.parts),
        begin(part * args.steps / args.parts),
        end((part + 1) * args.steps / args.parts) {}
};

template <typename S>
__device__ inline void bring_tiles(
    const CUtensorMap& w, const CUtensorMap& x, bool gated, const Share& share, const S& stages) {
  const uint64_t once = policy_read_once();
  const uint64_t often = policy_read_often();
  auto load_weights = [&](int step, int stage) {
    barrier_arrive_expecting(stages.full + stage, S::kBytes);
#pragma unroll
    for (int box = 0; box < S::kWeightBoxes; ++box) {
      const int column = (step * S::kWeightBoxes + box) * S::kWeightColumns;
      std::byte* to = stages.weights(stage, box);
      if (gated) {
        load_box_4d(to, w, column, 0, 0, share.strip * kGroups, stages.full + stage, once);
      } else {
        load_box(to, w, column, share.strip * kStripRows, stages.full + stage, once);
      }
    }
  };
  auto load_x = [&](int step, int stage) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const int column = (step * kBoxes + box) * kBoxColumns;
      load_box(stages.x(stage, box), x, column, 0, stages.full + stage, often);
    }
  };
  const int count = share.end - share.begin;
  const int ahead = count < S::kCount ? count : S::kCount;
  for (int i = 0; i < ahead; ++i) load_weights(share.begin + i, i);
  wait_for_previous();
  for (int i = 0; i < ahead; ++i) load_x(share.begin + i, i);
  Cursor<S::kCount> cursor;
  for (int step = share.begin + ahead; step < share.end; ++step) {
    barrier_wait(stages.empty + cursor.stage, cursor.parity);
    load_weights(step, cursor.stage);
    load_x(step, cursor.stage);
    cursor.advance();
  }
}

// Adds this block's steps to sums [64 rows of W × kTokens], laid out as device/wgmma.cuh says.
template <typename T, int kTokens>
__device__ inline void multiply(const Share& share,
                                const Stages<false, kTokens>& stages,
                                float (&sums)[kTokens / 2]) {
  using S = Stages<false, kTokens>;
  Cursor<S::kCount> cursor;
  int behind = -1;  // a stage that products still read
#pragma unroll 1
  for (int step = share.begin; step < share.end; ++step) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    products_begin(sums);
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const std::byte* weights = stages.weights(cursor.stage, box);
      const std::byte* x = stages.x(cursor.stage, box);
#pragma unroll
      for (int k = 0; k < kRowBytes; k += 32)
        multiply_tiles(T(), sums, swizzled_tile(weights + k), swizzled_tile(x + k));
    }
    products_issued();
    products_done<1>(sums);
    if (threadIdx.x == 0 && behind >= 0) barrier_arrive(stages.empty + behind);
    behind = cursor.stage;
    cursor.advance();
  }
  products_done<0>(sums);
}

// The same with W in f8_e4m3: a thread fetches the pairs that its registers of A hold, from pieces of 16
// bytes that TMA has permuted by the row's number.
template <typename T, int kTokens>
__device__ inline void multiply_f8(const Share& share,
                                   const Stages<true, kTokens>& stages,
                                   float (&sums)[kTokens / 2]) {
  constexpr int kProducts = kStageColumns / 16;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int row = static_cast<int>(threadIdx.x) / kWarpSize * 16 + lane / 4;  // and the eighth behind it
  Cursor<Stages<true, kTokens>::kCount> cursor;
#pragma unroll 1
  for (int step = share.begin; step < share.end; ++step) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    const std::byte* codes = stages.weights(cursor.stage, 0) + row * kRowBytes + lane % 4 * 2;
    uint32_t a[kProducts][4];
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
      const std::byte* piece = codes + (k ^ (row % 8)) * 16;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[k][i] = *reinterpret_cast<const uint16_t*>(piece + i % 2 * 8 * kRowBytes + i / 2 * 8);
    }
#pragma unroll
    for (int k = 0; k < kProducts; ++k) {
#pragma unroll
      for (uint32_t& pair : a[k]) {
        pair = widen_pair(T(), pair);
        asm volatile("" : "+r"(pair));  // written before the products begin
      }
    }
    products_begin(sums);
#pragma unroll
    for (int k = 0; k < kProducts; ++k)
      multiply_rows(T(), sums, a[k], swizzled_tile(stages.x(cursor.stage, k / 4) + k % 4 * 32));
    products_issued();
    products_done<0>(sums);
    if (lane == 0) barrier_arrive(stages.empty + cursor.stage);
    cursor.advance();
  }
}

// The same for few rows of x, by products of single warps, which take both operands from registers: columns
// may enter a product in any order that x follows too, so that a thread gets four codes of W, and four
// elements of x, at a time. No warp waits for another's products.
template <typename T, int kTokens>
__device__ inline void multiply_few_f8(const Share& share,
                                       const Stages<true, kTokens>& stages,
                                       float (&sums)[kTokens / 2]) {
  constexpr int kPieces = kRowBytes / 16;  // of a stage's columns, sixteen each
  constexpr int kTiles = kTokens / 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_row = static_cast<int>(threadIdx.x) / kWarpSize * 16;
  // Of the four 8 × 16 matrices of codes that are loaded at once: rows, the eight behind them, and of the
  // next piece the same.
  const int row = first_row + lane % 8 + lane / 8 % 2 * 8;
  float odd[kTiles][4] = {};  // sums of every other piece: products wait for those into the same sums
  float even[kTiles][4] = {};
  Cursor<Stages<true, kTokens>::kCount> cursor;
#pragma unroll 1
  for (int step = share.begin; step < share.end; ++step) {
    barrier_wait(stages.full + cursor.stage, cursor.parity);
    const auto* codes = reinterpret_cast<const uint4*>(stages.weights(cursor.stage, 0)) + row * kPieces;
    uint32_t loaded[kPieces / 2][4];
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i)
      load_matrices(loaded[i], codes + ((2 * i + lane / 16) ^ (lane % 8)));
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const uint32_t low = loaded[piece / 2][piece % 2 * 2];
      const uint32_t high = loaded[piece / 2][piece % 2 * 2 + 1];
      const uint32_t a[] = {widen_pair<0>(T(), low),
                            widen_pair<0>(T(), high),
                            widen_pair<1>(T(), low),
                            widen_pair<1>(T(), high)};
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const std::byte* token = stages.x(cursor.stage, piece / 4) + (tile * 8 + lane / 4) * kRowBytes;
        const int at = (piece % 4 * 2 + lane % 4 / 2) ^ (lane / 4);
        const uint2 b = *reinterpret_cast<const uint2*>(token + at * 16 + lane % 2 * 8);
        mma_16x8x16(T(), piece % 2 == 0 ? even[tile] : odd[tile], a[0], a[1], a[2], a[3], b.x, b.y);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(stages.empty + cursor.stage);
    cursor.advance();
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[tile * 4 + i] = even[tile][i] + odd[tile][i];
  }
}

// y [token, column]; a column is a row of W, or one of the gate and one that it lets through.
template <typename T>
struct Output {
  const StreamArgs& args;
  const float* scales;  // of W's rows, or none
  const T* bias;
  void* y;

  // The sums of two tokens with the scale and the bias of their row of W.
  __device__ float2 finished(int row, float2 sums) const {
    const float scale = scales == nullptr ? 1.0f : scales[row];
    const float offset = bias == nullptr ? 0.0f : to_float_dev(bias[row]);
    return make_float2(sums.x * scale + offset, sums.y * scale + offset);
  }
  // `low`, `high`: of columns `column` (even) and the next.
  __device__ void store(int token, int column, float low, float high) const {
    if (token >= args.rows || column >= args.columns) return;
    const bool both = column + 1 < args.columns;
    const int64_t at = token * args.y_stride + column;
    if (args.floats) {
      float* to = static_cast<float*>(y) + at;
      if (both) {
        *reinterpret_cast<float2*>(to) = make_float2(low, high);
      } else {
        *to = low;
      }
    } else {
      T* to = static_cast<T*>(y) + at;
      if (both) {
        *reinterpret_cast<uint32_t*>(to) = pack_pair(T(), low, high);
      } else {
        *to = from_float_dev<T>(low);
      }
    }
  }
  // The values of `token` and the next in `column`, from a warp's lanes as wgmma lays them out: lanes of
  // neighbouring columns swap one, so that each has two columns of a token.
  __device__ void store_pair(int token, int column, float2 values) const {
    const int odd = column % 2;
    const float got = __shfl_xor_sync(0xffffffffu, odd ? values.x : values.y, 4);
    store(token + odd, column - odd, odd ? got : values.x, odd ? values.y : got);
  }

  // Of kTokens tokens: what store_unit() takes at a time.
  __device__ int units(int tokens) const { return args.gated ? tokens / 8 : tokens / 4; }
  // pair_of(p): the sums of a row of W and two tokens; a thread has two rows of eight tokens after eight.
  template <typename PairOf>
  __device__ void store_unit(int strip, int unit, PairOf&& pair_of) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int group = (strip * kStripRows / 16 + static_cast<int>(threadIdx.x) / kWarpSize) * kGroupRows;
    const int token = lane % 4 * 2;
    if (args.gated) {
      const int column = group + lane / 4;
      const bool inside = column < args.columns;
      const float2 gate = finished(inside ? column : 0, pair_of(2 * unit));
      const float2 up = finished(inside ? args.columns + column : 0, pair_of(2 * unit + 1));
      return store_pair(unit * 8 + token, column, make_float2(silu(gate.x) * up.x, silu(gate.y) * up.y));
    }
    const int column = 2 * group + unit % 2 * 8 + lane / 4;
    store_pair(unit / 2 * 8 + token, column, finished(column < args.columns ? column : 0, pair_of(unit)));
  }
};

template <typename T, bool kF8, int kTokens>
__global__ void __launch_bounds__(kThreads, Stages<kF8, kTokens>::kBlocks)
    stream_linear(const __grid_constant__ CUtensorMap w,
                  const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ StreamArgs args,
                  const float* scales,
                  const T* bias,
                  void* y) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = Stages<kF8, kTokens>;
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * S::kCount];
  const S stages{raw + (1024 - shared_address(raw) % 1024) % 1024, barriers, barriers + S::kCount};
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kCount; ++i) {
      barrier_init(stages.full + i, 1);
      barrier_init(stages.empty + i, S::kReaders);
    }
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();
  const Share share(args);
  // The same in all lanes, and the compiler is to know it: products are issued by whole warps.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / kWarpSize, 0);
  if (warp == kMultipliers / kWarpSize) {
    if (threadIdx.x % kWarpSize == 0) bring_tiles(w, x, args.gated, share, stages);
    __syncwarp();
    wait_for_previous();
    if (args.parts > 1) {
      meet_cluster();
      meet_cluster();
    }
    return;
  }
  wait_for_previous();
  float sums[kTokens / 2] = {};
  if constexpr (kF8 && kTokens <= kFewTokens) {
    multiply_few_f8<T>(share, stages, sums);
  } else if constexpr (kF8) {
    multiply_f8<T>(share, stages, sums);
  } else {
    multiply<T>(share, stages, sums);
  }
  const Output<T> result{args, scales, bias, y};
  const int units = result.units(kTokens);
  if (args.parts == 1) {
#pragma unroll
    for (int unit = 0; unit < kTokens / 4; ++unit) {
      if (unit == units) return;
      result.store_unit(share.strip, unit, [&](int p) { return make_float2(sums[2 * p], sums[2 * p + 1]); });
    }
    return;
  }
  // No stage is read any more.
  asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
  float2* mine = reinterpret_cast<float2*>(stages.memory) + threadIdx.x;
#pragma unroll
  for (int p = 0; p < kTokens / 4; ++p) mine[p * kMultipliers] = make_float2(sums[2 * p], sums[2 * p + 1]);
  meet_cluster();
  for (int unit = 0; unit < units; ++unit) {
    if ((warp * units + unit) % args.parts != share.part) continue;
    result.store_unit(share.strip, unit, [&](int p) {
      float2 whole = {0, 0};
      for (int block = 0; block < args.parts; ++block) {
        const float2 some = load_from_block(mine + p * kMultipliers, block);
        whole.x += some.x;
        whole.y += some.y;
      }
      return whole;
    });
  }
  meet_cluster();  // others may still be reading
#endif
}

// Rows of `stride` elements, read in boxes of kRowBytes and `box_rows` rows.
TensorMapShape rows_of(
    DType dtype, const void* data, int64_t columns, int64_t rows, int64_t stride, int box_rows) {
  return {.dtype = dtype,
          .data = data,
          .dimensions = 2,
          .sizes = {columns, rows},
          .strides = {stride},
          .box = {static_cast<int>(kRowBytes / dtype_bytes(dtype)), box_rows}};
}

// W of a gated product as [groups of eight rows, gate or not, row of the group, column], read in boxes of a
// strip.
TensorMapShape gated_rows_of(DType dtype, const void* data, const MatmulShape& shape) {
  const int64_t half = shape.n / 2;
  return {.dtype = dtype,
          .data = data,
          .dimensions = 4,
          .sizes = {shape.k, kGroupRows, 2, half / kGroupRows},
          .strides = {shape.k, half * shape.k, kGroupRows * shape.k},
          .box = {static_cast<int>(kRowBytes / dtype_bytes(dtype)), kGroupRows, 2, kGroups}};
}

}  // namespace

struct StreamedLinear::Call {
  const MatmulShape& shape;
  const MatmulOperands& operands;
  int parts;
  cudaStream_t stream;
};

template <typename T, bool kF8, int kTokens>
cudaError_t StreamedLinear::launch_as(const Call& call) const {
  using S = Stages<kF8, kTokens>;
  const MatmulShape& shape = call.shape;
  const StreamArgs args{.rows = static_cast<int>(shape.m),
                        .columns = static_cast<int>(shape.columns()),
                        .steps = static_cast<int>(ceil_div(shape.k, kStageColumns)),
                        .parts = call.parts,
                        .y_stride = shape.y_stride,
                        .floats = shape.out == DType::kF32,
                        .gated = shape.gated};
  const DType weight = kF8 ? DType::kF8E4M3 : shape.in;
  CUtensorMap w;
  CUtensorMap x;
  cudaError_t error =
      encoder_.encode(shape.gated ? gated_rows_of(weight, call.operands.w, shape)
                                  : rows_of(weight, call.operands.w, shape.k, shape.n, shape.k, kStripRows),
                      w);
  if (error == cudaSuccess)
    error = encoder_.encode(rows_of(shape.in, call.operands.x, shape.k, shape.m, shape.x_stride, kTokens), x);
  auto* kernel = stream_linear<T, kF8, kTokens>;
  constexpr int kBytes = S::kCount * S::kBytes + 1024;
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const OverlappedLaunch launch{
      .grid = dim3(static_cast<unsigned>(ceil_div(shape.n, kStripRows) * call.parts)),
      .threads = kThreads,
      .stream = call.stream,
      .shared_bytes = kBytes,
      .cluster_blocks = call.parts,
  };
  return launch_overlapped(kernel,
                           launch,
                           w,
                           x,
                           args,
                           call.operands.w_scales,
                           static_cast<const T*>(call.operands.bias),
                           call.operands.y);
}

template <typename T, bool kF8>
cudaError_t StreamedLinear::launch_type(const Call& call) const {
  if (call.shape.m <= 8) return launch_as<T, kF8, 8>(call);
  if (call.shape.m <= 16) return launch_as<T, kF8, 16>(call);
  if constexpr (kF8) return launch_as<T, kF8, 32>(call);
  if (call.shape.m <= 32) return launch_as<T, kF8, 32>(call);
  return launch_as<T, kF8, 64>(call);
}

cudaError_t StreamedLinear::launch(const MatmulShape& shape,
                                   const MatmulOperands& operands,
                                   int parts,
                                   cudaStream_t stream) const {
  const Call call{shape, operands, parts, stream};
  if (shape.f8_weight)
    return shape.in == DType::kBF16 ? launch_type<__nv_bfloat16, true>(call)
                                    : launch_type<__half, true>(call);
  return shape.in == DType::kBF16 ? launch_type<__nv_bfloat16, false>(call)
                                  : launch_type<__half, false>(call);
}

bool StreamedLinear::takes(const MatmulShape& shape) const {
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  const int piece = shape.f8_weight ? 16 : kVecWidth;  // elements of 16 bytes of W
  const bool aligned = shape.alignment >= 16 && shape.k % piece == 0 && shape.x_stride % kVecWidth == 0 &&
                       shape.y_stride % 2 == 0;
  const bool whole_groups = !shape.gated || shape.n % (2 * kGroupRows) == 0;
  return supported_ && short_floats && aligned && whole_groups && shape.m >= 1 &&
         shape.m <= (shape.f8_weight ? kMostRowsOfF8 : kMostRows);
}

bool StreamedLinear::divides(const MatmulShape& shape, int parts) const {
  const bool known = parts == 1 || parts == 2 || parts == 4 || parts == kMostParts;
  return known && parts <= ceil_div(shape.k, kStageColumns);
}

std::vector<int> StreamedLinear::divisions(const MatmulShape& shape) const {
  const int64_t strips = ceil_div(shape.n, kStripRows);
  const int64_t blocks = processors_ * (shape.f8_weight ? Stages<true, 8>::kBlocks : 1);
  int likely = 1;
  while (likely < kMostParts && 2 * likely * strips <= blocks && shape.k >= 2 * likely * kLeastColumns)
    likely *= 2;
  std::vector<int> found{likely};
  for (int parts = 1; parts <= kMostParts; parts *= 2) {
    if (parts != likely && divides(shape, parts)) found.push_back(parts);
  }
  return found;
}

Result<StreamedLinear> StreamedLinear::make() {
  StreamedLinear made;
  int index = 0;
  cudaDeviceProp device{};
  RETURN_IF_ERROR(device::cuda_status(cudaGetDevice(&index), "cudaGetDevice"));
  RETURN_IF_ERROR(device::cuda_status(cudaGetDeviceProperties(&device, index), "cudaGetDeviceProperties"));
  made.processors_ = device.multiProcessorCount;
  if (device.major != 9 || device.minor != 0 || !kCompiled) return made;
  made.supported_ = made.encoder_.find() == cudaSuccess;  // an older driver has no such function
  return made;
}

}  // namespace llm_dist::kernels
