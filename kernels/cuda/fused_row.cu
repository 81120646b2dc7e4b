// Every processor has one block, whose warps take pairs of rows of W in turns. Each thread copies what it
// will multiply itself, 16 bytes of either row at a time, to a ring in shared memory and goes on with the
// next pair's while it multiplies: weights wait for nothing but room, those of the first pairs not even for
// the kernel in front. Two blocks on one processor and none on another would take nearly twice as long, so
// two do not fit.
//
// Tensor cores multiply. A thread has some neighbouring elements of x and those of W that belong to them. As
// A and B of m16n8k16 (device/mma.cuh), the runs of x are the columns and those of the two rows of W the
// rows, and of all products of one run with another only those on the diagonal count.
//
// W in f8_e4m3 is widened to f16, which takes one instruction for two codes. x is then in f16, too, lifted by
// a power of two, so that f16 has all bits of a bf16 that is not 2²⁹ times smaller than the largest of its
// row.
//
// A norm in front is computed by every block for itself, as the whole row is needed anyway. The new residual
// stream and the norm are written by the block that was the last to read what was there.
//
// Where x is a sum over ranks (device/terms_of_row.cuh), every block takes the terms and adds them up, too. A
// product that makes a term sends each pair of it to all ranks when it has it.
//
// Sums are taken in float, in an order that depends on k alone.
#include "kernels/cuda/device/f8.cuh"
#include "kernels/cuda/device/fused_row_args.cuh"
#include "kernels/cuda/device/fused_row_x.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/rotate.cuh"
#include "kernels/cuda/device/silu.cuh"
#include "kernels/cuda/device/tiles.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/vec.cuh"
#include "kernels/cuda/fused_row_kernel.h"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels::fused_row {
namespace {

constexpr int kMostShared = 225 << 10;
static_assert(2 * kRingBytes > kMostShared);  // two blocks do not fit a processor

// `group`: elements of a row of W.
int x_bytes(int64_t k, int64_t group) { return static_cast<int>(ceil_div(k, group) * group * 2); }
int residual_bytes(const RowNorm& norm) { return static_cast<int>(norm.width * 2); }

// A warp's pairs, one after the other. Heads are counted along: to divide would take longer than to multiply.
template <Kind kKind>
struct PairWalk {
  int pair;
  int head = 0;
  int within = 0;  // of the pairs of a head

  __device__ PairWalk(const FusedRowArgs& args, int first) : pair(first) {
    if constexpr (kKind == Kind::kRotated) {
      head = first / args.half;
      within = first % args.half;
    }
  }
  __device__ void advance(const FusedRowArgs& args) {
    pair += args.turn;
    if constexpr (kKind == Kind::kRotated) {
      head += args.turn_heads;
      within += args.turn_within;
      if (within < args.half) return;
      within -= args.half;
      ++head;
    }
  }
  __device__ int low(const FusedRowArgs& args) const {
    if constexpr (kKind == Kind::kRotated) return 2 * head * args.half + within;
    return kKind == Kind::kGated ? pair : 2 * pair;
  }
  // Of a last pair that is not whole the same row.
  __device__ int high(const FusedRowArgs& args) const {
    if constexpr (kKind == Kind::kRotated) return low(args) + args.half;
    return kKind == Kind::kGated ? pair + args.pairs : min(2 * pair + 1, args.rows - 1);
  }
};

// This thread's loads.
template <typename W, Kind kKind>
struct WeightRing {
  const FusedRowArgs& args;
  uint32_t memory;  // a shared address
  PairWalk<kKind> walk;
  int left = 0;  // bytes of the row from this thread's next one on
  int group = 0;
  const std::byte* low = nullptr;
  const std::byte* high = nullptr;
  uint64_t policy = policy_read_once();

  __device__ WeightRing(const FusedRowArgs& of, const uint4* at, int first)
      : args(of), memory(shared_address(at)), walk(of, first) {
    find_rows();
  }
  __device__ void find_rows() {
    const int at = static_cast<int>(threadIdx.x) % kWarpSize * kLoadBytes;
    const int row_bytes = args.k * static_cast<int>(sizeof(W));
    const int first = walk.low(args);
    low = static_cast<const std::byte*>(args.w) + static_cast<int64_t>(first) * row_bytes + at;
    high = low + static_cast<int64_t>(walk.high(args) - first) * row_bytes;
    left = row_bytes - at;
    group = args.groups;
  }
  __device__ void load(int slot) {
    if (walk.pair < args.pairs) {
      const uint32_t to = memory + static_cast<uint32_t>(slot * kGroupBytes);
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        const bool there = s * kStepBytes < left;
        const int at = there ? s * kStepBytes : 0;
        copy_async(to + 2 * s * kStepBytes, low + at, there, policy);
        copy_async(to + (2 * s + 1) * kStepBytes, high + at, there, policy);
      }
      low += kGroup * kStepBytes;
      high += kGroup * kStepBytes;
      left -= kGroup * kStepBytes;
      if (--group == 0) {
        walk.advance(args);
        if (walk.pair < args.pairs) find_rows();
      }
    }
    end_copies();
  }
};

// Of the blocks that have read the row so far, this one included.
__device__ inline uint32_t count_reader(uint32_t* readers) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(readers) : "memory");
  return before + 1;
}

// A load of either row with the elements of x that belong to them. Sums are kept apart, so that little
// follows from one another.
template <typename T, typename W>
__device__ inline void multiply_step(float (&sums)[4][4], int step, uint4 low, uint4 high, const uint4* x) {
  const uint4 first = x[0];
  if constexpr (Factors<T, W>::kWidens) {
    const uint4 second = x[kWarpSize];
    auto multiply = [&](float(&to)[4], uint32_t of_low, uint32_t of_high, uint32_t x0, uint32_t x1) {
      const uint2 a = widen_four(__half(), of_low);
      const uint2 b = widen_four(__half(), of_high);
      mma_16x8x16(__half(), to, a.x, b.x, a.y, b.y, x0, x1);
    };
    multiply(sums[0], low.x, high.x, first.x, first.y);
    multiply(sums[1], low.y, high.y, first.z, first.w);
    multiply(sums[2], low.z, high.z, second.x, second.y);
    multiply(sums[3], low.w, high.w, second.z, second.w);
  } else {
    mma_16x8x16(T(), sums[2 * step % 4], low.x, high.x, low.y, high.y, first.x, first.y);
    mma_16x8x16(T(), sums[2 * step % 4 + 1], low.z, high.z, low.w, high.w, first.z, first.w);
  }
}

// The diagonals: of the lower row and of the higher one.
__device__ inline float2 add_up(const float (&sums)[4][4]) {
  float all[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) all[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int run = lane / 4;
  const bool has_one = lane % 4 == run / 2;
  const bool second = run % 2 == 1;
  const float low = second ? all[1] : all[0];
  const float high = second ? all[3] : all[2];
  return make_float2(warp_reduce(has_one ? low : 0.0f, AddOp()), warp_reduce(has_one ? high : 0.0f, AddOp()));
}

struct TokenPlace {
  int position = 0;
  int slot = -1;
};

// What a pair's sums become, fetched before they are there.
template <typename T, typename W, Kind kKind>
struct PairEnd {
  const FusedRowArgs& args;
  PairWalk<kKind> walk;
  int low_row;
  int high_row;
  float scales[2] = {1, 1};
  float bias[2] = {};
  bool rotates = false;
  float cosine = 0;
  float sine = 0;

  __device__ PairEnd(const FusedRowArgs& of, const TokenPlace& token, const PairWalk<kKind>& at)
      : args(of), walk(at), low_row(at.low(of)), high_row(at.high(of)) {
    if constexpr (sizeof(W) == 1) {
      scales[0] = args.w_scales[low_row];
      scales[1] = args.w_scales[high_row];
    }
    if (args.bias != nullptr) {
      const auto* values = static_cast<const T*>(args.bias);
      bias[0] = to_float_dev(values[low_row]);
      bias[1] = to_float_dev(values[high_row]);
    }
    if constexpr (kKind == Kind::kRotated) {
      rotates = token.slot >= 0 && walk.head < args.rotation.num_heads + args.rotation.num_kv_heads;
      if (!rotates) return;
      const float* of_token =
          args.rotation.cos_sin + token.position * args.rotation.cos_sin_stride + walk.within;
      cosine = of_token[0];
      sine = of_token[args.half];
    }
  }

  __device__ void store(float2 sums, float factor, const TokenPlace& token) const {
    const float low = sums.x * scales[0] * factor + bias[0];
    const float high = sums.y * scales[1] * factor + bias[1];
    if constexpr (kKind == Kind::kGated) {
      store_one(low_row, silu(low) * high);
    } else if constexpr (kKind == Kind::kPlain) {
      store_one(low_row, low);
      if (high_row != low_row) store_one(high_row, high);
    } else {
      float first = low;
      float second = high;
      if (rotates) rotate_pair(first, second, cosine, sine);
      store_one(low_row, first);
      store_one(high_row, second);
      if (token.slot < 0 || walk.head < args.rotation.num_heads) return;
      if (args.rotation.cache_dtype == DType::kF8E4M3) {
        append<__nv_fp8_e4m3>(first, second, token);
      } else {
        append<T>(first, second, token);
      }
    }
  }
  // To the rank of this lane.
  __device__ void send(float2 sums, float factor, uint64_t number) const {
    const device::PeerTerms& terms = args.terms;
    const int rank = static_cast<int>(threadIdx.x) % kWarpSize;
    if (rank >= terms.size) return;
    const float low = sums.x * scales[0] * factor + bias[0];
    const float high = sums.y * scales[1] * factor + bias[1];
    auto* row = reinterpret_cast<uint32_t*>(term_at(terms, rank, terms.rank, number));
    store_term(row + low_row / 2, pack_pair(T(), low, high));
  }
  __device__ void store_one(int column, float value) const {
    if (args.floats) {
      static_cast<float*>(args.y)[column] = value;
    } else {
      static_cast<T*>(args.y)[column] = from_float_dev<T>(value);
    }
  }
  template <typename Kv>
  __device__ void append(float first, float second, const TokenPlace& token) const {
    const Rotation& rotation = args.rotation;
    const int kv_head = walk.head - rotation.num_heads;
    const bool is_value = kv_head >= rotation.num_kv_heads;
    Kv* to = static_cast<Kv*>(is_value ? rotation.v_cache : rotation.k_cache) +
             rotation.cache_offset(token.slot, is_value ? kv_head - rotation.num_kv_heads : kv_head) +
             walk.within;
    to[0] = from_float_dev<Kv>(first);
    to[args.half] = from_float_dev<Kv>(second);
  }
};

template <typename T, typename W, Kind kKind>
__global__ void __launch_bounds__(kThreads, 1) run_row(const __grid_constant__ FusedRowArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint4 shared[];
  __shared__ bool is_last;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  uint4* x = shared;
  uint4* sums_of_norm = x + args.groups * kGroupElements<W> / kVecWidth;
  uint4* ring_memory =
      sums_of_norm + args.norm.width / kVecWidth + warp * kRing * kGroupBytes / kLoadBytes + lane;
  const int first = warp * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
  WeightRing<W, kKind> ring(args, ring_memory, first);
#pragma unroll 1
  for (int slot = 0; slot < kRingBeforeX; ++slot) ring.load(slot);
  uint4 norm_weights[kKeptOfNorm];
  if (has_norm(args)) {
#pragma unroll
    for (int i = 0; i < kKeptOfNorm; ++i) {
      const int v = static_cast<int>(threadIdx.x) + i * kThreads;
      norm_weights[i] = {};
      if (v < args.norm.width / kVecWidth) norm_weights[i] = static_cast<const uint4*>(args.norm.weight)[v];
    }
  }
  // Who takes terms waits in the end, who sends some lets no one start before (device/terms_of_row.cuh). No
  // product does both.
  const bool takes = has_terms(args);
  const bool sends = kKind == Kind::kPlain && args.terms.size > 0;
  if (!sends) let_next_start();
  if (!takes) wait_for_previous();
  if (sends) let_next_start();
  const uint64_t sum_taken = takes ? load_relaxed(args.norm.terms.calls) + 1 : 0;
  const uint64_t sum_sent = sends ? load_relaxed(args.terms.calls) + 1 : 0;
  TokenPlace token;
  if constexpr (kKind == Kind::kRotated) token = {*args.rotation.positions, *args.rotation.slots};
  auto load_the_rest = [&] {
#pragma unroll 1
    for (int slot = kRingBeforeX; slot < kRing; ++slot) ring.load(slot);
  };
  const float factor = has_norm(args)
                           ? stage_norm<T, W>(args, norm_weights, sum_taken, sums_of_norm, x, load_the_rest)
                           : stage_x<T, W>(args, x, load_the_rest);
  // The last warp has the fewest pairs, and so time to wait for the count.
  if (has_norm(args) && threadIdx.x == kThreads - 1) is_last = count_reader(args.readers) == gridDim.x;
  int slot = 0;
#pragma unroll 1
  for (PairWalk<kKind> walk(args, first); walk.pair < args.pairs; walk.advance(args)) {
    const PairEnd<T, W, kKind> end(args, token, walk);
    const uint4* of_x = x + lane;
    float sums[4][4] = {};
#pragma unroll 1
    for (int group = 0; group < args.groups; ++group) {
      await_copies<kRing - 1>();
      uint4 low[kGroup];
      uint4 high[kGroup];
      const uint4* at = ring_memory + slot * kGroupBytes / kLoadBytes;
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        low[s] = at[2 * s * kWarpSize];
        high[s] = at[(2 * s + 1) * kWarpSize];
      }
      ring.load(slot);
      slot = (slot + 1) % kRing;
#pragma unroll
      for (int s = 0; s < kGroup; ++s)
        multiply_step<T, W>(sums, s, low[s], high[s], of_x + s * Factors<T, W>::kStep / kVecWidth);
      of_x += kGroupElements<W> / kVecWidth;
    }
    const float2 products = add_up(sums);
    if (sends) {
      end.send(products, factor, sum_sent);
    } else if (lane == 0) {
      end.store(products, factor, token);
    }
  }
  if (!has_norm(args)) return;
  __syncthreads();
  if (is_last) {
    write_norm<T, W>(args, sums_of_norm, x, factor);
    if (takes) end_sum_of_terms(args.norm.terms, sum_taken, args.norm.width / kVecWidth);
    if (threadIdx.x == 0) *args.readers = 0;
  }
  if (takes) wait_for_previous();
#endif
}

using Kernel = void (*)(FusedRowArgs);
template <typename T, typename W>
constexpr Kernel kKernels[] = {
    run_row<T, W, Kind::kPlain>, run_row<T, W, Kind::kGated>, run_row<T, W, Kind::kRotated>};

Kernel kernel_for(DType dtype, bool f8, Kind kind) {
  const auto index = static_cast<size_t>(kind);
  if (dtype == DType::kBF16)
    return f8 ? kKernels<__nv_bfloat16, F8>[index] : kKernels<__nv_bfloat16, __nv_bfloat16>[index];
  return f8 ? kKernels<__half, F8>[index] : kKernels<__half, __half>[index];
}

int64_t group_elements(bool f8) { return f8 ? kGroupElements<F8> : kGroupElements<__half>; }
int shared_bytes(int64_t k, bool f8, const RowNorm& norm) {
  return x_bytes(k, group_elements(f8)) + residual_bytes(norm) + kRingBytes;
}

}  // namespace

bool has_room(int64_t k, bool with_norm) {
  const RowNorm norm{.width = with_norm ? k : 0};
  return norm.width <= int64_t{kKeptOfNorm} * kThreads * kVecWidth && k < (1 << 24) &&
         shared_bytes(k, true, norm) <= kMostShared;
}

bool fits_processors() {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (bool f8 : {false, true}) {
      for (Kind kind : {Kind::kPlain, Kind::kGated, Kind::kRotated}) {
        const auto* kernel = reinterpret_cast<const void*>(kernel_for(dtype, f8, kind));
        int blocks = 0;
        cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostShared);
        if (error == cudaSuccess)
          error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, kMostShared);
        if (error == cudaSuccess && blocks > 0) continue;
        (void)cudaGetLastError();
        return false;
      }
    }
  }
  return true;
}

cudaError_t launch(const FusedRowOps& ops, uint32_t* readers, int processors, cudaStream_t stream) {
  const MatmulShape& shape = ops.shape;
  const Kind kind = shape.gated ? Kind::kGated : ops.has_rotation() ? Kind::kRotated : Kind::kPlain;
  const int rows = static_cast<int>(shape.n);
  const int pairs = (rows + 1) / 2;
  const int blocks = std::min(processors, pairs);
  const int turn = blocks * kWarps;
  const int half = ops.has_rotation() ? ops.rotation.head_dim / 2 : 1;
  const FusedRowArgs args{
      .rows = rows,
      .pairs = pairs,
      .half = half,
      .turn = turn,
      .turn_heads = turn / half,
      .turn_within = turn % half,
      .k = static_cast<int>(shape.k),
      .groups = static_cast<int>(ceil_div(shape.k, group_elements(shape.f8_weight))),
      .floats = shape.out == DType::kF32,
      .w = ops.operands.w,
      .w_scales = ops.operands.w_scales,
      .bias = ops.operands.bias,
      .x = ops.operands.x,
      .y = ops.operands.y,
      .terms = ops.operands.terms,
      .norm = ops.norm,
      .readers = readers,
      .rotation = ops.rotation,
  };
  const OverlappedLaunch launch{
      .grid = dim3(static_cast<unsigned>(blocks)),
      .threads = kThreads,
      .stream = stream,
      .shared_bytes = shared_bytes(shape.k, shape.f8_weight, ops.norm),
  };
  return launch_overlapped(kernel_for(shape.in, shape.f8_weight, kind), launch, args);
}

}  // namespace llm_dist::kernels::fused_row
