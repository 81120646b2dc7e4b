// A block takes a strip of 64 rows of W and all or a part of its columns. The blocks of one strip are a
// cluster: each sends the others the sums that they are to add up, and adds up its own share of y, in the
// order of the columns. At its end a block waits for what it is sent, and for nothing else.
//
// The form that gives every block the same work: even_linear.cu.
#include <algorithm>
#include <bit>

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
constexpr int64_t kMostRows = 128;
constexpr int64_t kMostRowsOfParts = 64;  // beyond, ranges of the same length alone
// Beyond, x in parts costs more than the library's rounding of it.
constexpr int64_t kMostRowsOfF8 = 32;
constexpr int64_t kLeastColumns = 1024;  // of a part, where there is a choice

// What a block does: of 2^log_parts parts of a strip one.
struct Share {
  int strip;
  int part;
  int begin;  // steps [begin, end)
  int end;
  __device__ Share(int steps, int log_parts)
      : strip(static_cast<int>(blockIdx.x) >> log_parts),
        part(static_cast<int>(blockIdx.x) - (strip << log_parts)),
        begin(part * steps >> log_parts),
        end((part + 1) * steps >> log_parts) {}
  __device__ int count() const { return end - begin; }
};

// Which block of a cluster adds up what: the groups of eight tokens, all warps' one after the other, are
// dealt out.
template <typename S>
struct Deal {
  static constexpr int kGroups = S::kTokens / 8;  // of a warp
  static constexpr int kAllGroups = S::kWarps * kGroups;
  static constexpr uint32_t kGroupBytes = kWarpSize * sizeof(float4);
  // Of the most blocks, each of which adds up a group at most.
  static_assert(kMostParts * kGroupBytes <= S::kSentBytes && kAllGroups * kGroupBytes <= S::kSentBytes);

  uint32_t sent;  // a shared address: this thread's first place
  uint64_t* arrived;
  int log_parts;
  int part;
  int first_group = warp_number() * kGroups;  // of this warp's

  __device__ int parts() const { return 1 << log_parts; }
  __device__ uint32_t turns() const { return (kAllGroups + parts() - 1) >> log_parts; }
  __device__ int owner(int group) const { return (first_group + group) & (parts() - 1); }
  // Where the block that adds up a group has the sums of block `from`.
  __device__ uint32_t place(int group, int from) const {
    const uint32_t turn = (first_group + group) >> log_parts;
    return sent + (from * turns() + turn) * kGroupBytes;
  }
  // One thread says what this block will be sent.
  __device__ void expect() const {
    const int mine = (kAllGroups + parts() - 1 - part) >> log_parts;
    barrier_arrive_expecting(arrived, mine * (parts() - 1) * kGroupBytes);
  }
  __device__ void send(const float (&sums)[S::kTokens / 2]) const {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int to = owner(group);
      if (to != part) send_to_block(place(group, part), sums_of_group(sums, group), arrived, to);
    }
  }
  __device__ void await() const { barrier_wait(arrived, 0); }
  // Of a group that this block adds up.
  __device__ float4 whole(const float (&sums)[S::kTokens / 2], int group) const {
    const float4 mine = sums_of_group(sums, group);
    uint32_t at = place(group, 0);
    float4 all = part == 0 ? mine : load_sent(at);
#pragma unroll 1
    for (int from = 1; from < parts(); ++from) {
      at += turns() * kGroupBytes;
      const float4 some = from == part ? mine : load_sent(at);
      all.x += some.x;
      all.y += some.y;
      all.z += some.z;
      all.w += some.w;
    }
    return all;
  }
};

template <typename T, typename S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    stream_linear(const __grid_constant__ CUtensorMap w,
                  const __grid_constant__ CUtensorMap x,
                  const __grid_constant__ StreamArgs args,
                  const float* scales,
                  const T* bias,
                  void* y,
                  const __grid_constant__ device::PeerTerms terms,
                  int log_parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * S::kCount];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) barrier_init(&arrived, 1);  // made known with those of the stages
  const S stages = S::make(raw, barriers);
  if (log_parts > 0) arrive_at_cluster();
  if (terms.size == 0) let_next_start();
  const Share share(args.steps, log_parts);
  const int warp = warp_number();
  if (warp == S::kBringer) {
    if (threadIdx.x % kWarpSize == 0)
      bring_tiles(w, x, args, {share.strip, share.begin}, share.count(), stages);
    __syncwarp();
    wait_for_previous();
    if (log_parts > 0) await_cluster();
    return;
  }
  const Deal<S> deal{.sent = shared_address(stages.sent() + threadIdx.x % kWarpSize),
                     .arrived = &arrived,
                     .log_parts = log_parts,
                     .part = share.part};
  if (threadIdx.x == 0) deal.expect();
  __syncwarp();
  wait_for_previous();
  if (terms.size > 0) let_next_start();
  const StripOutput<T, S> output(args, scales, bias, y, terms, share.strip * S::kStripRows);
  float sums[S::kTokens / 2] = {};
  Cursor<S::kCount> cursor;
  if (log_parts > 0) await_cluster();
  add_products(T(), share.count(), stages, cursor, sums);
  if (log_parts > 0) {
    deal.send(sums);
    deal.await();
  }
  output.store([&](int group) { return deal.owner(group) == share.part; },
               [&](int group) { return deal.whole(sums, group); });
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

bool is_even(int division) { return (division & StreamedLinear::kEven) != 0; }
EvenStrips even_strips(int division) {
  auto has = [division](int flags) { return (division & flags) == flags; };
  return {.wide = has(StreamedLinear::kEvenWide),
          .pairs = has(StreamedLinear::kEvenPairs),
          .parts = division / StreamedLinear::even_parts(1)};
}

}  // namespace

int StreamedLinear::wanted_division(LinearKernels kernels) {
  switch (kernels) {
    case LinearKernels::kEven: return kEven;
    case LinearKernels::kEvenWide: return kEvenWide;
    case LinearKernels::kEvenPairs: return kEvenPairs;
    case LinearKernels::kEvenParts: return kEvenWide | even_parts(2);
    default: return 0;
  }
}

cudaError_t StreamedLinear::launch(const MatmulShape& shape,
                                   const MatmulOperands& operands,
                                   int parts,
                                   const StreamMemory& memory,
                                   cudaStream_t stream) const {
  if (is_even(parts)) return launch_even_linear(device_, shape, operands, even_strips(parts), memory, stream);
  const StreamCall call{device_.encoder, shape, operands, memory, stream};
  return with_stages(shape, [&](auto type, auto stages) {
    using T = decltype(type);
    using S = decltype(stages);
    const int log_parts = std::countr_zero(static_cast<unsigned>(parts));
    return launch_streamed<T>(
        stream_linear<T, S>, stages, call, strips_of<S>(shape) * parts, parts > 1 ? parts : 0, log_parts);
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
  if (is_even(parts)) return takes_even_strips(device_, shape, even_strips(parts));
  const bool known = parts == 1 || parts == 2 || parts == 4 || parts == kMostParts;
  return known && shape.m <= kMostRowsOfParts && parts <= cut_of(shape).steps;
}

std::vector<int> StreamedLinear::divisions(const MatmulShape& shape) const {
  std::vector<int> found;
  auto add = [&](int parts) {
    if (divides(shape, parts)) found.push_back(parts);
  };
  if (shape.m > kMostRowsOfParts) {
    for (int parts : {0, 1, 2}) {
      add(kEvenWide | even_parts(parts));
      add(kEvenPairs | even_parts(parts));
    }
    return found;
  }
  const Cut cut = cut_of(shape);
  const int64_t blocks = device_.processors * cut.blocks;
  int likely = 1;
  while (likely < kMostParts && 2 * likely * cut.strips <= blocks && shape.k >= 2 * likely * kLeastColumns)
    likely *= 2;
  found.push_back(likely);
  for (int parts = 1; parts <= kMostParts; parts *= 2) {
    if (parts != likely) add(parts);
  }
  add(kEven);
  if (x_is_much(shape)) add(kEvenWide);
  return found;
}

}  // namespace llm_dist::kernels
