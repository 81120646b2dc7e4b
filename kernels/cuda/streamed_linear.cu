// A block takes a strip of W and all or a part of its columns. The blocks of one strip are a cluster: each
// sends the others the sums that they are to add up, and adds up its own share of y, in the order of the
// columns. At its end a block waits for what it is sent, and for nothing else.
//
// Of many rows of x, the blocks of two strips may be a cluster and bring each other half of x.
//
// The form that gives every block the same work: even_linear.cu.
#include <algorithm>

#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/streamed_launch.cuh"
#include "kernels/cuda/device/streamed_products.cuh"
#include "kernels/cuda/device/streamed_tiles.cuh"
#include "kernels/cuda/device/tiled_output.cuh"
#include "kernels/cuda/streamed_linear.h"

namespace llm_dist::kernels {
namespace {

using namespace streamed;

constexpr int kMostParts = StreamedDivision::kMostParts;
constexpr int64_t kMostRows = 256;
// Of a part, where there is a choice: fewer would pay less than what its sums cost.
constexpr int64_t kLeastColumns = 1024;
constexpr int64_t kLeastColumnsOfMany = 256;

// Of a strip, with a number that divides by it what is small: n / count = n * reciprocal >> 16.
struct Parts {
  int count = 1;
  uint32_t reciprocal = 0;
  explicit Parts(int parts) : count(parts), reciprocal((1u << 16) / parts + 1) {}
};

// What a block does: of a strip's parts one.
template <typename S>
struct Share {
  int strips;  // side by side, one for each block that shares x
  int part;
  int begin;  // steps [begin, end)
  int end;
  __device__ Share(int steps, int parts)
      : strips(static_cast<int>(parts * S::kSharing > 1 ? cluster_of_grid() : blockIdx.x)),
        part(parts > 1 ? static_cast<int>(block_of_cluster()) / S::kSharing : 0),
        begin(part * steps / parts),
        end((part + 1) * steps / parts) {}
  __device__ int count() const { return end - begin; }
};

// Which block of a cluster adds up what: the groups of eight tokens, all warps' one after the other, are
// dealt out.
template <typename S>
struct Deal {
  static constexpr int kGroups = S::kTokens / 8;  // of a warp
  static constexpr int kAllGroups = S::kWarps * kGroups;
  // Whether a block's own sums stay where they are until they are added up. Many would make that long, each
  // an instruction of its own; they wait where the stages were.
  static constexpr bool kInRegisters = !S::kTiled;
  static_assert(kInRegisters || kAllGroups * kGroupBytes <= S::kCount * S::kBytes);

  uint32_t sent;  // a shared address: this thread's first place
  uint32_t kept;  // likewise, of this warp's own
  uint64_t* arrived;
  const Parts& parts;
  int part;
  int first_group = warp_number() * kGroups;  // of this warp's

  __device__ uint32_t divided(int groups) const { return groups * parts.reciprocal >> 16; }
  __device__ int turn(int group) const { return divided(first_group + group); }
  __device__ int owner(int group) const { return first_group + group - turn(group) * parts.count; }
  // Of the sums of one block.
  __device__ uint32_t bytes_sent() const { return divided(kAllGroups + parts.count - 1) * kGroupBytes; }
  // One thread says what this block will be sent.
  __device__ void expect() const {
    const uint32_t mine = divided(kAllGroups + parts.count - 1 - part);
    barrier_arrive_expecting(arrived, mine * (parts.count - 1) * kGroupBytes);
  }
  // Behind the block's last stage.
  __device__ void send(const float (&sums)[S::kTokens / 2]) const {
    if constexpr (!kInRegisters) barrier_of_multipliers<S>();  // all have read what lies there
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const int to = owner(group);
      if (to == part) {
        if constexpr (!kInRegisters) store_shared(kept + group * kGroupBytes, sums_of_group(sums, group));
        continue;
      }
      const int others = part - (part > to ? 1 : 0);  // that come before this one
      send_to_block(sent + others * bytes_sent() + turn(group) * kGroupBytes,
                    sums_of_group(sums, group),
                    arrived,
                    to * S::kSharing + S::share());
    }
  }
  __device__ void await() const { barrier_wait(arrived, 0); }
  // for_each(sums, rows, put): calls put() as OutputOf::store() wants it, for what this block adds up.
  template <int kAtOnce, typename Put>
  __device__ void for_each(const float (&sums)[S::kTokens / 2], int rows, Put&& put) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (8 * group >= rows || owner(group) != part) continue;
        const float4 mine[1] = {sums_of_group(sums, group)};
        float4 all[1];
        add_up(group, [&](int i, float4& some) { some = mine[i]; }, all);
        put(group, 1, all);
      }
    } else {
      const int before = part - owner(0);
#pragma unroll 1
      for (int group = before < 0 ? before + parts.count : before; 8 * group < rows;
           group += kAtOnce * parts.count) {
        // Of groups that are not there any more, whatever lies there: nobody stores it.
        float4 all[kAtOnce];
        add_up(
            group,
            [&](int i, float4& some) { some = load_shared(kept + (group + i * parts.count) * kGroupBytes); },
            all);
        put(group, parts.count, all);
      }
    }
  }
  // Of this block's groups from `group` on, in the order of the columns. mine(i, sums): its own of the i-th.
  template <int kAtOnce, typename Mine>
  __device__ void add_up(int group, Mine&& mine, float4 (&all)[kAtOnce]) const {
    uint32_t at = sent + turn(group) * kGroupBytes;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) all[i] = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int from = 0; from < parts.count; ++from) {
      float4 some[kAtOnce];
      if (from == part) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) mine(i, some[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) some[i] = load_shared(at + i * kGroupBytes);
        at += bytes_sent();
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        all[i].x += some[i].x;
        all[i].y += some[i].y;
        all[i].z += some[i].z;
        all[i].w += some[i].w;
      }
    }
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
                  const __grid_constant__ Parts parts) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ std::byte raw[];
  __shared__ uint64_t barriers[2 * S::kCount];
  __shared__ uint64_t arrived;
  if (threadIdx.x == 0) barrier_init(&arrived, 1);  // made known with those of the stages
  const S stages = S::make(raw, barriers);
  const bool in_cluster = parts.count * S::kSharing > 1;
  if (in_cluster) arrive_at_cluster();
  if (terms.size == 0) let_next_start();
  const Share<S> share(args.steps, parts.count);
  const int warp = warp_number();
  if (warp == S::kBringer) {
    if (threadIdx.x == S::kMultipliers) {
      bring_tiles(w, x, args, {share.strips, share.begin}, share.count(), stages);
    } else if constexpr (S::kSharing > 1) {
      await_cluster_alone();
    }
    __syncwarp();
    wait_for_previous();
    if constexpr (S::kSharing > 1) {
      await_readers();
    } else if (in_cluster) {
      await_cluster();
    }
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const Deal<S> deal{.sent = shared_address(stages.sent() + lane),
                     .kept = shared_address(stages.memory) + warp * Deal<S>::kGroups * kGroupBytes +
                             lane * static_cast<int>(sizeof(float4)),
                     .arrived = &arrived,
                     .parts = parts,
                     .part = share.part};
  if (threadIdx.x == 0) deal.expect();
  __syncwarp();
  wait_for_previous();
  if (terms.size > 0) let_next_start();
  using Output = OutputOf<T, S>;
  const Output output(args, scales, bias, y, terms, stages, S::strip_of(share.strips) * S::kStripRows);
  float sums[S::kTokens / 2] = {};
  Reading<S> reading(share.count());
  if (in_cluster) await_cluster();
  add_products(T(), share.count(), stages, reading, sums);
  if (parts.count > 1 || !Deal<S>::kInRegisters) deal.send(sums);
  if (parts.count > 1) deal.await();
  output.store([&](auto&& put) { deal.template for_each<Output::kAtOnce>(sums, args.rows, put); });
  if constexpr (S::kSharing > 1) {
    __syncwarp();
    await_readers();
  }
#endif
}

// with_stages_of_parts(shape, strips, run): calls run(T(), Stages()) with what a shape takes in parts of
// strips, wide or not, wide ones in pairs or not.
template <typename Run>
cudaError_t with_stages_of_parts(const MatmulShape& shape, const StreamedDivision& strips, Run&& run) {
  if (shape.m <= kMostRowsOfNarrow) return with_stages(shape, run);
  return with_parts(shape, [&](auto type, auto parts) {
    if (!strips.wide) return with_stages_of_many<1, 1, true>(type, parts, shape.m, run);
    if (strips.sharing == 2) return with_stages_of_many<2, 2, true>(type, parts, shape.m, run);
    return strips.sharing == 1 ? with_stages_of_many<2, 1, true>(type, parts, shape.m, run)
                               : cudaErrorInvalidValue;
  });
}

// What a shape becomes in parts.
struct Cut {
  int64_t strips = 0;  // side by side, where blocks share x
  int64_t steps = 0;
  int64_t blocks = 0;  // of a processor
  int most_parts = 0;  // that there is memory for
};

Cut cut_of(const MatmulShape& shape, const StreamedDivision& strips) {
  Cut cut;
  (void)with_stages_of_parts(shape, strips, [&](auto, auto stages) {
    using S = decltype(stages);
    cut = {ceil_div(strips_of<S>(shape), S::kSharing), steps_of<S>(shape), S::kBlocks, S::kMostParts};
    return cudaSuccess;
  });
  return cut;
}

// Whether a strip brings so much of x that it pays to bring it half as often: more than a quarter of what it
// brings of W.
bool x_is_much(const MatmulShape& shape) {
  const int64_t of_w = kProductRows * (shape.f8_weight ? 1 : 2);  // bytes of a column
  const bool is_rounded = shape.f8_weight && shape.m > kMostRowsInParts;
  const int64_t of_x = shape.m * (is_rounded ? 1 : 2);  // 16 bits, or two parts of 8 at least
  return of_x > of_w / 4;
}

}  // namespace

StreamedLinear::StreamedLinear(const HopperDevice& device) : device_(device) {
  if (!device.supported) return;
  // All kernels take a block's room, or half of it, of each processor.
  using S = Stages<0, 128, 2, 1, true>;
  for (int blocks = 1; blocks <= kMostParts; ++blocks) {
    const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(blocks)),
                                  .threads = S::kThreads,
                                  .shared_bytes = S::kSharedBytes,
                                  .cluster_blocks = blocks};
    clusters_[static_cast<size_t>(blocks - 1)] = clusters_at_once(stream_linear<__nv_bfloat16, S>, launch);
  }
}

std::optional<StreamedDivision> StreamedLinear::wanted_division(LinearKernels kernels) {
  using enum StreamedDivision::Form;
  switch (kernels) {
    case LinearKernels::kEven: return StreamedDivision{.form = kEven};
    case LinearKernels::kEvenWide: return StreamedDivision{.form = kEven, .wide = true};
    case LinearKernels::kEvenPairs: return StreamedDivision{.form = kEven, .wide = true, .sharing = 2};
    case LinearKernels::kEvenQuads: return StreamedDivision{.form = kEven, .wide = true, .sharing = 4};
    case LinearKernels::kWholePairs: return StreamedDivision{.form = kWhole, .wide = true, .sharing = 2};
    case LinearKernels::kWholeQuads: return StreamedDivision{.form = kWhole, .wide = true, .sharing = 4};
    case LinearKernels::kThreeParts: return StreamedDivision{.wide = true, .parts = 3};
    case LinearKernels::kPairsOfParts: return StreamedDivision{.wide = true, .sharing = 2, .parts = 2};
    case LinearKernels::kPairsOfThreeParts: return StreamedDivision{.wide = true, .sharing = 2, .parts = 3};
    case LinearKernels::kPairsOfFourParts: return StreamedDivision{.wide = true, .sharing = 2, .parts = 4};
    case LinearKernels::kNarrowStrips: return StreamedDivision{};
    case LinearKernels::kTwoNarrowParts: return StreamedDivision{.parts = 2};
    case LinearKernels::kThreeNarrowParts: return StreamedDivision{.parts = 3};
    case LinearKernels::kFourNarrowParts: return StreamedDivision{.parts = 4};
    default: return std::nullopt;
  }
}

cudaError_t StreamedLinear::launch(const MatmulShape& shape,
                                   const MatmulOperands& operands,
                                   const StreamedDivision& division,
                                   const StreamMemory& memory,
                                   cudaStream_t stream) const {
  if (division.form != StreamedDivision::Form::kParts)
    return launch_even_linear(device_, clusters_of(division), shape, operands, division, memory, stream);
  const StreamCall call{device_.encoder, shape, operands, memory, stream};
  return with_stages_of_parts(shape, division, [&](auto type, auto stages) {
    using T = decltype(type);
    using S = decltype(stages);
    const int cluster = division.parts * S::kSharing;
    const int64_t clusters = ceil_div(strips_of<S>(shape), S::kSharing);
    return launch_streamed<T>(stream_linear<T, S>,
                              stages,
                              call,
                              clusters * cluster,
                              cluster > 1 ? cluster : 0,
                              Parts(division.parts));
  });
}

bool StreamedLinear::takes(const MatmulShape& shape) const {
  const bool short_floats = shape.in == DType::kBF16 || shape.in == DType::kF16;
  const int piece = shape.f8_weight ? 16 : kVecWidth;  // elements of 16 bytes of W
  const bool aligned = shape.alignment >= 16 && shape.k % piece == 0 && shape.x_stride % kVecWidth == 0 &&
                       shape.y_stride % 2 == 0;
  const bool whole_groups = !shape.gated || shape.n % (2 * kGroupRows) == 0;
  // TiledOutput's: floats one by one, and not of gated strips, others in vectors.
  const bool tiles =
      shape.m <= kMostRowsStoredAsTheyLie ||
      (shape.out == DType::kF32 ? !shape.gated
                                : shape.columns() % kVecWidth == 0 && shape.y_stride % kVecWidth == 0);
  return device_.supported && short_floats && aligned && whole_groups && tiles && shape.m >= 1 &&
         shape.m <= (shape.f8_weight ? StreamMemory::kMostCodeRows : kMostRows);
}

bool StreamedLinear::divides(const MatmulShape& shape, const StreamedDivision& division) const {
  const bool many = shape.m > kMostRowsOfNarrow;
  const auto& [form, wide, sharing, parts] = division;
  const bool shares = sharing == 2 || sharing == 4;
  if (sharing != 1 && !(shares && many && wide)) return false;
  switch (form) {
    case StreamedDivision::Form::kParts: {
      const Cut cut = cut_of(shape, division);
      return (many || !wide) && parts >= 1 && parts <= cut.most_parts && parts <= cut.steps &&
             clusters_[static_cast<size_t>(parts * sharing - 1)] > 0;
    }
    case StreamedDivision::Form::kEven:
    case StreamedDivision::Form::kWhole:
      return (wide || !many) && parts == 1 &&
             takes_even_strips(device_, clusters_of(division), shape, division);
  }
  return false;  // of a file that was damaged
}

int StreamedLinear::most_parts(const MatmulShape& shape, const StreamedDivision& strips) const {
  const Cut cut = cut_of(shape, strips);
  const int64_t least_columns = shape.m > kMostRowsOfNarrow ? kLeastColumnsOfMany : kLeastColumns;
  auto fits = [&](int parts) {
    return cut.strips <= clusters_[static_cast<size_t>(parts * strips.sharing - 1)] * cut.blocks &&
           parts <= cut.steps && shape.k >= parts * least_columns;
  };
  int parts = cut.most_parts;
  while (parts > 0 && !fits(parts)) --parts;
  return parts;
}

std::vector<StreamedDivision> StreamedLinear::divisions(const MatmulShape& shape) const {
  using enum StreamedDivision::Form;
  std::vector<StreamedDivision> found;
  auto add = [&](const StreamedDivision& division) {
    if (divides(shape, division) && std::find(found.begin(), found.end(), division) == found.end())
      found.push_back(division);
  };
  if (shape.m > kMostRowsOfNarrow) {
    for (int sharing : {1, 2, 4}) {
      const int parts = most_parts(shape, {.wide = true, .sharing = sharing});
      add({.form = parts > 1 ? kParts : kWhole,
           .wide = true,
           .sharing = sharing,
           .parts = std::max(1, parts)});
    }
    for (int sharing : {1, 2, 4}) add({.form = kEven, .wide = true, .sharing = sharing});
    if (const int parts = most_parts(shape, {}); parts > 0) add({.parts = parts});
    return found;
  }
  add({.parts = std::max(1, most_parts(shape, {}))});
  for (int parts = 1; parts <= kMostParts; parts *= 2) add({.parts = parts});
  add({.form = kEven});
  if (x_is_much(shape)) add({.form = kEven, .wide = true});
  return found;
}

}  // namespace llm_dist::kernels
