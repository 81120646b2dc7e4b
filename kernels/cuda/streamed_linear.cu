// A block takes a strip of 64 rows of W and all or a part of its columns. The blocks of one strip are a
// cluster and add up what each has through their shared memory, in the order of the columns.
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
constexpr int kMostParts = 8;  // blocks of a cluster that every device takes
constexpr int64_t kMostRows = 64;
constexpr int64_t kLeastColumns = 1024;  // of a part, where there is a choice

struct StreamArgs {
  int rows = 0;   // of x
  int n = 0;      // rows of W
  int steps = 0;  // stages that hold all columns
  int parts = 1;  // of the columns
  int64_t y_stride = 0;
  bool floats = false;  // y
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

// Walks a ring of stages; the parity is that of the phase in which a stage is filled.
template <int kCount>
struct Cursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage < kCount) return;
    stage = 0;
    parity ^= 1;
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
__device__ inline void bring_tiles(const CUtensorMap& w,
                                   const CUtensorMap& x,
                                   const Share& share,
                                   const S& stages) {
  const uint64_t once = policy_read_once();
  const uint64_t often = policy_read_often();
  auto load_weights = [&](int step, int stage) {
    barrier_arrive_expecting(stages.full + stage, S::kBytes);
#pragma unroll
    for (int box = 0; box < S::kWeightBoxes; ++box) {
      const int column = (step * S::kWeightBoxes + box) * S::kWeightColumns;
      load_box(stages.weights(stage, box), w, column, share.strip * kStripRows, stages.full + stage, once);
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

// y [token, row]
template <typename T>
struct Output {
  const StreamArgs& args;
  const float* scales;  // of W's rows, or none
  const T* bias;
  void* y;

  // `low`, `high`: of rows `row` (even) and the next.
  __device__ void store(int token, int row, float low, float high) const {
    if (token >= args.rows || row >= args.n) return;
    const bool both = row + 1 < args.n;
    if (scales != nullptr) {
      low *= scales[row];
      if (both) high *= scales[row + 1];
    }
    if (bias != nullptr) {
      low += to_float_dev(bias[row]);
      if (both) high += to_float_dev(bias[row + 1]);
    }
    const int64_t at = token * args.y_stride + row;
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
};

// A thread's i-th pair of sums are two columns of a row; threads of neighbouring rows swap one, so that each
// has two rows of a column: neighbours in y.
template <typename T>
__device__ inline void store_pair(const Output<T>& result, int strip, int i, float2 pair) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpSize;
  const int row = strip * kStripRows + thread / kWarpSize * 16 + i % 2 * 8 + lane / 4;
  const int odd = row % 2;
  const float got = __shfl_xor_sync(0xffffffffu, odd ? pair.x : pair.y, 4);
  result.store(i / 2 * 8 + lane % 4 * 2 + odd, row - odd, odd ? got : pair.x, odd ? pair.y : got);
}

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
    if (threadIdx.x % kWarpSize == 0) bring_tiles(w, x, share, stages);
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
  if constexpr (kF8) {
    multiply_f8<T>(share, stages, sums);
  } else {
    multiply<T>(share, stages, sums);
  }
  constexpr int kPairs = kTokens / 4;
  const Output<T> result{args, scales, bias, y};
  if (args.parts == 1) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i)
      store_pair(result, share.strip, i, make_float2(sums[2 * i], sums[2 * i + 1]));
    return;
  }
  // No stage is read any more.
  asm volatile("bar.sync 1, %0;" ::"n"(kMultipliers) : "memory");
  float2* mine = reinterpret_cast<float2*>(stages.memory) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) mine[i * kMultipliers] = make_float2(sums[2 * i], sums[2 * i + 1]);
  meet_cluster();
  for (int i = 0; i < kPairs; ++i) {
    if ((warp * kPairs + i) % args.parts != share.part) continue;
    float2 whole = {0, 0};
    for (int block = 0; block < args.parts; ++block) {
      const float2 some = load_from_block(mine + i * kMultipliers, block);
      whole.x += some.x;
      whole.y += some.y;
    }
    store_pair(result, share.strip, i, whole);
  }
  meet_cluster();  // others may still be reading
#endif
}

cudaError_t find_encode(void** encode) {
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kFirstVersion = 12000;
  return cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", encode, kFirstVersion, cudaEnableDefault, &found);
#else
  return cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", encode, cudaEnableDefault, &found);
#endif
}

CUtensorMapDataType element_type(DType dtype) {
  if (dtype == DType::kF8E4M3) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// Rows of `stride` elements, read in boxes of kRowBytes and `box_rows` rows; what lies outside reads as zero.
cudaError_t describe(void* encode,
                     CUtensorMap* map,
                     DType dtype,
                     const void* data,
                     int64_t columns,
                     int64_t rows,
                     int64_t stride,
                     int box_rows) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride * dtype_bytes(dtype))};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kRowBytes / dtype_bytes(dtype)),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t every[2] = {1, 1};
  const CUresult result =
      reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode)(map,
                                                                  element_type(dtype),
                                                                  2,
                                                                  const_cast<void*>(data),
                                                                  sizes,
                                                                  strides,
                                                                  box,
                                                                  every,
                                                                  CU_TENSOR_MAP_INTERLEAVE_NONE,
                                                                  CU_TENSOR_MAP_SWIZZLE_128B,
                                                                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
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
                        .n = static_cast<int>(shape.n),
                        .steps = static_cast<int>(ceil_div(shape.k, kStageColumns)),
                        .parts = call.parts,
                        .y_stride = shape.y_stride,
                        .floats = shape.out == DType::kF32};
  CUtensorMap w;
  CUtensorMap x;
  cudaError_t error = describe(
      encode_, &w, kF8 ? DType::kF8E4M3 : shape.in, call.operands.w, shape.k, shape.n, shape.k, kStripRows);
  if (error == cudaSuccess)
    error = describe(encode_, &x, shape.in, call.operands.x, shape.k, shape.m, shape.x_stride, kTokens);
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
  return supported_ && short_floats && aligned && shape.m >= 1 && shape.m <= kMostRows;
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
  RETURN_IF_ERROR(device::cuda_status(find_encode(&made.encode_), "cuTensorMapEncodeTiled"));
  made.supported_ = made.encode_ != nullptr;
  return made;
}

}  // namespace llm_dist::kernels
