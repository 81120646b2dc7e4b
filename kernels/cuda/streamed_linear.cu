// A block takes a strip of 64 rows of W and all or a part of its columns. The blocks of one strip are a
// cluster and add up what each has through their shared memory, in the order of the columns.
//
// The form that gives every block the same work: even_linear.cu.
#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/streamed_launch.cuh"
#include "kernels/cuda/device/streamed_output.cuh"
#include "kernels/cuda/device/streamed_products.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/streamed_linear.h"

namespace llm_dist::kernels {
namespace {

using namespace streamed;

constexpr int kMostParts = 8;  // blocks of a cluster that every device takes
constexpr int64_t kMostRows = 64;
// Beyond, x in parts costs more than the library's rounding of it.
constexpr int64_t kMostRowsOfF8 = 32;
constexpr int64_t kLeastColumns = 1024;  // of a part, where there is a choice

// What a block does.
struct Share {
  int strip;
  int part;
  int begin;  // steps [begin, end)
  int end;
  __device__ Share(int steps, int parts)
      : strip(static_cast<int>(blockIdx.x) / parts),
        part(static_cast<int>(blockIdx.x) % parts),
        begin(part * steps / parts),
        end((part + 1) * steps / parts) {}
  __device__ int count() const { return end - begin; }
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    stream_linear(const __grid_constant__ CUtensorMap w,
                  const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ StreamArgs args,
                  const float* scales,
                  const T* bias,
                  void* y,
                  int parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * S::kCount];
  const S stages = S::make(raw, barriers);
  let_next_start();
  const Share share(args.steps, parts);
  const int warp = warp_number();
  if (warp == S::kBringer) {
    if (threadIdx.x % kWarpSize == 0)
      bring_tiles(w, x, args, {share.strip, share.begin}, share.count(), stages);
    __syncwarp();
    wait_for_previous();
    if (parts > 1) {
      meet_cluster();
      meet_cluster();
    }
    return;
  }
  wait_for_previous();
  float sums[S::kTokens / 2] = {};
  Cursor<S::kCount> cursor;
  add_products(T(), share.count(), stages, cursor, sums);
  const Output<T> result{args, scales, bias, y};
  const int first_row = share.strip * S::kStripRows;
  if (parts == 1) return result.store_strip(first_row, sums);
  barrier_of_group(0);  // no stage is read any more
  float2* mine = reinterpret_cast<float2*>(stages.memory) + threadIdx.x;
#pragma unroll
  for (int p = 0; p < S::kTokens / 4; ++p)
    mine[p * S::kMultipliers] = make_float2(sums[2 * p], sums[2 * p + 1]);
  meet_cluster();
  const int units = result.units(S::kTokens);
  for (int unit = 0; unit < units; ++unit) {
    if ((warp * units + unit) % parts != share.part) continue;
    result.store_unit(first_row, unit, [&](int p) {
      float2 whole = {0, 0};
      for (int block = 0; block < parts; ++block) {
        const float2 some = load_from_block(mine + p * S::kMultipliers, block);
        whole.x += some.x;
        whole.y += some.y;
      }
      return whole;
    });
  }
  meet_cluster();  // others may still be reading
#endif
}

// What a shape becomes without wide strips.
struct Cut {
  int64_t strips = 0;
  int64_t steps = 0;
  int64_t blocks = 0;  // of a processor
};

Cut cut_of(const MatmulShape& shape) {
  Cut cut;
  (void)with_stages(shape, [&](auto, auto stages) {
    using S = decltype(stages);
    cut = {strips_of<S>(shape), steps_of<S>(shape), S::kBlocks};
    return cudaSuccess;
  });
  return cut;
}

// Whether a strip brings so much of x that it pays to bring it half as often: more than a quarter of what it
// brings of W.
bool x_is_much(const MatmulShape& shape) {
  const int64_t of_w = kProductRows * (shape.f8_weight ? 1 : 2);  // bytes of a column
  const int64_t of_x = shape.m * 2;  // two parts of 8 bits at least, or one of 16
  return of_x > of_w / 4;
}

}  // namespace

cudaError_t StreamedLinear::launch(const MatmulShape& shape,
                                   const MatmulOperands& operands,
                                   int parts,
                                   const StreamMemory& memory,
                                   cudaStream_t stream) const {
  if (parts == kEven || parts == kEvenWide) {
    const Strips strips = parts == kEven ? Strips::kNarrow : Strips::kWide;
    return launch_even_linear(device_, shape, operands, strips, memory, stream);
  }
  const StreamCall call{device_.encoder, shape, operands, memory, stream};
  return with_stages(shape, [&](auto type, auto stages) {
    using T = decltype(type);
    using S = decltype(stages);
    return launch_streamed<T>(stream_linear<T, S>, stages, call, strips_of<S>(shape) * parts, parts, parts);
  });
}

bool StreamedLinear::takes(const MatmulShape& shape) const {
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  const int piece = shape.f8_weight ? 16 : kVecWidth;  // elements of 16 bytes of W
  const bool aligned = shape.alignment >= 16 && shape.k % piece == 0 && shape.x_stride % kVecWidth == 0 &&
                       shape.y_stride % 2 == 0;
  const bool whole_groups = !shape.gated || shape.n % (2 * kGroupRows) == 0;
  return device_.supported && short_floats && aligned && whole_groups && shape.m >= 1 &&
         shape.m <= (shape.f8_weight ? kMostRowsOfF8 : kMostRows);
}

bool StreamedLinear::divides(const MatmulShape& shape, int parts) const {
  if (parts == kEven || parts == kEvenWide) return device_.processors <= StreamMemory::kMostProcessors;
  const bool known = parts == 1 || parts == 2 || parts == 4 || parts == kMostParts;
  return known && parts <= cut_of(shape).steps;
}

std::vector<int> StreamedLinear::divisions(const MatmulShape& shape) const {
  const Cut cut = cut_of(shape);
  const int64_t blocks = device_.processors * cut.blocks;
  int likely = 1;
  while (likely < kMostParts && 2 * likely * cut.strips <= blocks && shape.k >= 2 * likely * kLeastColumns)
    likely *= 2;
  std::vector<int> found{likely};
  for (int parts = 1; parts <= kMostParts; parts *= 2) {
    if (parts != likely && divides(shape, parts)) found.push_back(parts);
  }
  if (divides(shape, kEven)) found.push_back(kEven);
  if (x_is_much(shape) && divides(shape, kEvenWide)) found.push_back(kEvenWide);
  return found;
}

}  // namespace llm_dist::kernels
