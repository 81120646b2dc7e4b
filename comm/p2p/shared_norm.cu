// What stands between two matrices of a step of many rows where each rank has a share of the residual stream,
// in one kernel: the sums of its rows, their addition to the residual, the norm, and the rows for everyone. A
// warp a row.
//
// Of many rows the product in front stores its terms at the ranks whose rows they are, while it multiplies
// others (LinearSharesParams), so that here they are read at home. Of few rows it leaves them where the peers
// can read them, since in shares it would read its weights once for each: what is read so stays in the
// multiprocessor, and nobody waits for the way there and back, as a multiprocessor has many units on their
// way. The normed rows go to where every rank's product behind reads them.
//
// A block meets the peers' blocks of its number twice in a call (meet_peers.cuh): when the terms are there,
// and when the normed rows are. Blocks count their calls as those of all_reduce.cu do, and their flags are
// their own. Terms and normed rows are not: calls of other shapes give the same bytes to other blocks. Still
// no write comes too early, since a rank's kernels run one after the other (wait_for_previous): whoever hears
// from one block of a peer in call n knows that all of the peer's kernels before call n have ended.
//   Normed rows of call n lie in a peer's memory until a block that has heard from the peer in call n + 1
//   writes there. By then the peer's call n has ended, for which all of them had come from every rank, and so
//   have its kernels that read them.
//   Terms of call n stay until a product, or the embedding, writes there, of this rank or of a peer, that
//   follows its rank's call n. All blocks of that have then heard from every rank's blocks of their numbers
//   that those have read their rows, and no rank has more blocks.
// What a product has stored at a peer's is there before the release that tells the peer so: the kernel that
// releases begins its work when the product has ended.
//
// Rows that are kept are left to the products behind, one on each rank, which meet in the place of its blocks
// the second time: each hands its rank's rows to the peers, and ends when all of theirs have come
// (kernels/cuda/device/handed_rows.cuh). So both of the above hold where "its call n" is the product behind
// it. A product hands rows when its rank's call has ended, for which the peers' kernels before their call n
// have: nobody reads the rows of call n - 1 any more.
//
// The sum is rounded as all_reduce_sum rounds it, and squares are added up in norm_row's order: the bits of
// the calls apart.
#include <algorithm>

#include "comm/p2p/meet_peers.cuh"
#include "comm/p2p/packets.cuh"
#include "comm/p2p/peer_launch.h"
#include "comm/p2p/shared_norm.h"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/row_codes.cuh"

namespace llm_dist::comm {
namespace {

constexpr int kLanes = 32;
constexpr int kSharedWarps = kSharedThreads / kLanes;
// Of a row that stays in the multiprocessor. Of a longer one, threads of norm_row's block have several units.
constexpr int kKeptUnits = kernels::kMostNormThreads;

// Units that a lane has on their way at once, from every rank. With a row a warp that is more than NVLink
// needs to be busy all the time.
template <int kMostRanks>
constexpr int kBatch = kMostRanks == 2   ? 8
                       : kMostRanks == 4 ? 4
                                         : 2;

// A row of this rank's share.
template <typename T>
struct ShareRow {
  T* residual = nullptr;
  bool handed = false;  // ShareRows
  int64_t term = 0;     // in bytes, of the first rank's among the terms
  int64_t terms = 0;    // in bytes, from one rank's term to the next one's
  int64_t normed = 0;   // in bytes, among all normed rows
  int64_t scale = 0;    // of a row of codes, likewise
  int units = 0;
  bool kept = false;  // ShareRows: normed units stay here
};

// Known early where it can be.
template <int kMostRanks>
__device__ int size_of(const PeerView& peers) {
  return kMostRanks == 2 ? 2 : peers.size;
}

// Adds the sums of a batch of units, `first` and every kStep-th behind it, to the residual: take(unit, i,
// values) gets what then stands there, of the batch's i-th. All loads are on their way before any is waited
// for.
template <int kMostRanks, int kStep, typename T, typename Take>
__device__ void add_units(const PeerView& peers, const ShareRow<T>& row, int first, Take&& take) {
  constexpr int kUnits = kBatch<kMostRanks>;
  constexpr int kVec = kPerUnit<T>;
  const int size = size_of<kMostRanks>(peers);
  const int64_t term = peers.layout.term + row.term;
  auto memory_of = [&](int rank) { return row.handed ? peers.rank : rank; };
  uint4 raw[kUnits][kMostRanks];
  uint4 residual[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int unit = first + i * kStep;
    if (unit >= row.units) continue;
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) {
      if (rank < size)
        raw[i][rank] = load_from_peer(at<uint4>(peers, memory_of(rank), term + rank * row.terms) + unit);
    }
    residual[i] = reinterpret_cast<const uint4*>(row.residual)[unit];
  }
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    const int unit = first + i * kStep;
    if (unit >= row.units) continue;
    float before[kVec];
    float values[kVec];
    unpack<T>(residual[i], before);
    unpack<T>(sum_units<T>(raw[i], size), values);
    kernels::add_into<kVec>(before, values, row.residual + unit * kVec);
    take(unit, i, values);
  }
}

template <typename T>
__device__ uint4 norm_unit(uint4 sum, float scale, uint4 weight) {
  constexpr int kVec = kPerUnit<T>;
  float values[kVec];
  float weights[kVec];
  unpack<T>(sum, values);
  unpack<T>(weight, weights);
  kernels::scale_into(values, scale, weights, values);
  uint4 normed;
  kernels::store_vec<kVec>(values, reinterpret_cast<T*>(&normed));
  return normed;
}

// To this rank, and to all others if `for_all`: the i-th value from `begin` on, in bytes among normed rows.
template <int kMostRanks, typename Value>
__device__ void send(const PeerView& peers, bool for_all, int64_t begin, int i, const Value& value) {
  const int receivers = for_all ? size_of<kMostRanks>(peers) : 1;
#pragma unroll
  for (int distance = 0; distance < kMostRanks; ++distance) {
    if (distance >= receivers) break;
    at<Value>(peers, peer_behind(peers, distance), peers.layout.normed + begin)[i] = value;
  }
}

template <int kMostRanks, typename T, typename Unit>
__device__ void send_unit(const PeerView& peers, const ShareRow<T>& row, int unit, const Unit& normed) {
  send<kMostRanks>(peers, !row.kept, row.normed, unit, normed);
}

// Norms a row whose sums are `kept`, by a warp, each lane its own units, and sends its codes.
template <int kMostRanks, typename T>
__device__ void send_codes(
    const PeerView& peers, const ShareRow<T>& row, uint4* kept, float scale, const uint4* weight) {
  constexpr int kVec = kPerUnit<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  kernels::CodeScale of_row;
  float values[kVec];
#pragma unroll 4
  for (int unit = lane; unit < row.units; unit += kLanes) {
    kept[unit] = norm_unit<T>(kept[unit], scale, weight[unit]);
    unpack<T>(kept[unit], values);
#pragma unroll
    for (float value : values) of_row.look_at(value);
  }
  of_row.largest = kernels::warp_reduce(of_row.largest, kernels::MaxOp());
  const float factor = of_row.factor();
#pragma unroll 4
  for (int unit = lane; unit < row.units; unit += kLanes) {
    unpack<T>(kept[unit], values);
    send_unit<kMostRanks>(peers, row, unit, kernels::eight_codes(values, factor));
  }
  if (lane == 0) send<kMostRanks>(peers, true, row.scale, 0, of_row.scale());
}

// A row of at most kKeptUnits. `kept`: room for it, of which each lane uses its own units'. norm_row's block
// has a unit a thread, and this warp's lanes have one after another what its warps have.
template <int kMostRanks, typename T>
__device__ void norm_kept_row(
    const PeerView& peers, const ShareRows& rows, const ShareRow<T>& row, uint4* kept, const uint4* weight) {
  constexpr int kUnits = kBatch<kMostRanks>;
  constexpr int kVec = kPerUnit<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float squares = 0;
  for (int begin = 0; begin < row.units; begin += kUnits * kLanes) {
    float squares_of[kUnits] = {};
    add_units<kMostRanks, kLanes>(peers, row, begin + lane, [&](int unit, int i, const float(&values)[kVec]) {
      kernels::add_squares(values, squares_of[i]);
      kernels::store_vec<kVec>(values, reinterpret_cast<T*>(kept + unit));
    });
    // warp_reduce of each: one call after another would wait for every step of each.
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (float& each : squares_of) each += __shfl_xor_sync(kernels::kFullWarp, each, distance);
    }
#pragma unroll
    for (float each : squares_of) squares += each;
  }
  if (rows.weight == nullptr) return;
  const float scale = kernels::norm_scale(squares, rows.width, rows.epsilon);
  if (rows.codes) return send_codes<kMostRanks>(peers, row, kept, scale, weight);
#pragma unroll 4
  for (int unit = lane; unit < row.units; unit += kLanes)
    send_unit<kMostRanks>(peers, row, unit, norm_unit<T>(kept[unit], scale, weight[unit]));
}

// Any longer row: it is read again. The units that one thread of norm_row's block has follow one another
// here, too, and then the warps.
template <int kMostRanks, typename T>
__device__ void norm_long_row(const PeerView& peers, const ShareRows& rows, const ShareRow<T>& row) {
  constexpr int kVec = kPerUnit<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  float squares = 0;
  for (int first = lane; first < kKeptUnits; first += kLanes) {
    float squares_of_thread = 0;
    for (int begin = first; begin < row.units; begin += kBatch<kMostRanks> * kKeptUnits) {
      add_units<kMostRanks, kKeptUnits>(peers, row, begin, [&](int, int, const float(&values)[kVec]) {
        kernels::add_squares(values, squares_of_thread);
      });
    }
    squares += kernels::warp_reduce(squares_of_thread, kernels::AddOp());
  }
  if (rows.weight == nullptr) return;
  const float scale = kernels::norm_scale(squares, rows.width, rows.epsilon);
#pragma unroll 4
  for (int unit = lane; unit < row.units; unit += kLanes) {
    const uint4 weight = static_cast<const uint4*>(rows.weight)[unit];
    const uint4 sum = reinterpret_cast<const uint4*>(row.residual)[unit];
    send_unit<kMostRanks>(peers, row, unit, norm_unit<T>(sum, scale, weight));
  }
}

// kKeeps: rows have at most kKeptUnits; then there is memory for the weights and for a row a warp.
template <typename T, int kMostRanks, bool kKeeps>
__global__ void __launch_bounds__(kSharedThreads, 1)
    norm_shares_kernel(const __grid_constant__ PeerView peers, const ShareRows rows) {
  extern __shared__ uint4 kept[];  // [1 + kSharedWarps][units of a row]
  const int units = rows.width / kPerUnit<T>;
  if (kKeeps && rows.weight != nullptr) {
    // The weights do not wait for the rows.
#pragma unroll 4
    for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += kSharedThreads)
      kept[unit] = static_cast<const uint4*>(rows.weight)[unit];
  }
  kernels::wait_for_previous();
  kernels::let_next_start();
  uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.shared_calls) + blockIdx.x;
  const uint64_t number = load_relaxed(calls) + 1;
  if (meet_peers(peers, peers.layout.term_flags, number)) {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    for (int index = static_cast<int>(blockIdx.x) + warp * kSharedBlocks; index < rows.rows;
         index += kSharedWarps * kSharedBlocks) {
      const int64_t row_bytes = rows.width * static_cast<int64_t>(sizeof(T));
      const int64_t normed_bytes = rows.codes ? rows.width : row_bytes;
      const int64_t of_all = static_cast<int64_t>(peers.rank) * rows.rows + index;
      const int64_t all_rows = static_cast<int64_t>(size_of<kMostRanks>(peers)) * rows.rows;
      const ShareRow<T> row{.residual = static_cast<T*>(rows.residual) + int64_t{index} * rows.width,
                            .handed = rows.handed,
                            .term = (rows.handed ? index : of_all) * row_bytes,
                            .terms = rows.handed ? rows.rows * row_bytes : 0,
                            .normed = of_all * normed_bytes,
                            .scale = all_rows * normed_bytes + of_all * static_cast<int64_t>(sizeof(float)),
                            .units = units,
                            .kept = rows.kept};
      if constexpr (kKeeps) {
        norm_kept_row<kMostRanks>(peers, rows, row, kept + (1 + warp) * units, kept);
      } else {
        norm_long_row<kMostRanks>(peers, rows, row);
      }
    }
    if (!rows.kept) (void)meet_peers(peers, peers.layout.normed_flags, number);
  }
  if (threadIdx.x > 0) return;
  *calls = number;  // read by all before they met
  if (rows.kept && blockIdx.x == 0) ++*at<uint64_t>(peers, peers.rank, peers.layout.kept_calls);
}

using Kernel = void (*)(PeerView, ShareRows);

template <typename T, int kMostRanks>
Kernel kernel_of(bool keeps) {
  return keeps ? norm_shares_kernel<T, kMostRanks, true> : norm_shares_kernel<T, kMostRanks, false>;
}

template <typename T>
Kernel kernel_of(int size, bool keeps) {
  if (size == 2) return kernel_of<T, 2>(keeps);
  return size <= 4 ? kernel_of<T, 4>(keeps) : kernel_of<T, kMaxPeerRanks>(keeps);
}

Kernel kernel_of(DType dtype, int size, bool keeps) {
  return dtype == DType::kF16 ? kernel_of<__half>(size, keeps) : kernel_of<__nv_bfloat16>(size, keeps);
}

constexpr int kept_bytes(int units) { return (1 + kSharedWarps) * units * static_cast<int>(kUnitBytes); }

// The most that a block of the calling thread's device may have.
int most_shared_bytes() {
  int device = 0;
  int bytes = 0;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

}  // namespace

cudaError_t norm_shares(const PeerView& peers, DType dtype, const ShareRows& rows, cudaStream_t stream) {
  const int64_t all_rows = int64_t{rows.rows} * peers.size;
  CHECK(norms_shares(all_rows, rows.width, dtype, peers.size), "{} of {} {}", all_rows, rows.width, dtype);
  const int units = rows.width / kPerUnit<__half>;
  // Where a block has less, rows are read again: the bits are the same.
  const bool keeps = units <= kKeptUnits && kept_bytes(units) <= most_shared_bytes();
  CHECK(keeps || !rows.codes, "codes of rows of {}", rows.width);
  // Row r is block r's as far as there are blocks: few rows have all the more multiprocessors.
  const int blocks = std::min(rows.rows, kSharedBlocks);
  const kernels::OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(blocks)),
                                         .threads = kSharedThreads,
                                         .stream = stream,
                                         .shared_bytes = keeps ? kept_bytes(units) : 0};
  return launch_beside_peers(kernel_of(dtype, peers.size, keeps), launch, peers, rows);
}

cudaError_t load_shared_norm_kernels(int size) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (bool keeps : {false, true}) {
      const void* kernel = reinterpret_cast<const void*>(kernel_of(dtype, size, keeps));
      cudaFuncAttributes attributes{};
      cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
      if (error == cudaSuccess && keeps) {
        const int bytes = std::min(kept_bytes(kKeptUnits), most_shared_bytes());
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      }
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace llm_dist::comm
