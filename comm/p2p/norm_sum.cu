// What stands between two matrices of a step in one kernel: the sum over the ranks, its addition to the
// residual stream, and the norm. A block a row at a time, or a cluster of them, a thread a unit of it. Terms
// travel as peer_terms.cuh says: alone, and without a fence.
//
// In one trip every rank sends its row to all others and adds up all of them. In two, each adds up a part of
// every row for which the others send it theirs, and sends that to all: more than two ranks so move fewer
// bytes.
//
// The blocks of a row on all ranks are on their own, and all ranks take rows in one order. A rank counts the
// sums of each row that it has made, in its GPU's memory, and takes the two slots of the row's places in
// turn. A slot of sum n is written to again in sum n + 2, by a rank that has ended sum n + 1. That one has
// heard from all ranks in it, from each itself or through who adds up a part; and each sends for sum n + 1
// only when its kernel of sum n has ended, which took and forgot what was in that slot. In two trips a rank's
// place has its terms of the receiver's part and the sums of its own part: no unit twice.
//
// Terms may also be sent by the product that makes them, this rank's own among the places; and those of a
// single row be taken by the product behind (FusedRow). That is each rank's own affair, as the same goes to
// the peers' same places. Such a product is not waited for, but in the end: until then it may read its x and
// its weights, none of which is residual or out. That kernels of earlier sums have ended is then known by the
// product's own wait (kernels/cuda/device/terms_of_row.cuh).
//
// The sum is rounded as all_reduce_sum rounds it, and the rest is norm_row: the bits of the calls apart.
#include <algorithm>

#include "comm/p2p/norm_sum.h"
#include "comm/p2p/packets.cuh"
#include "comm/p2p/peer_launch.h"
#include "kernels/cuda/device/cluster_of_row.cuh"
#include "kernels/cuda/device/norm_row.cuh"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/second_level.cuh"

namespace llm_dist::comm {
namespace {

static_assert(kNormRowUnits <= kernels::kMostNormThreads);  // a thread has one unit at most
static_assert(kMaxPeerRanks <= device::PeerTerms::kMostRanks);

// A unit's places in the two slots of every rank's memory, for one sum.
struct TermPlaces {
  const PeerView& peers;
  int64_t unit_of_first;  // in bytes, in the first rank's place

  __device__ TermPlaces(const PeerView& of, uint64_t number, int row, int unit)
      : peers(of),
        unit_of_first(of.layout.norm_terms +
                      (static_cast<int64_t>(number % 2) * of.size * kNormRows + row) * kNormRowBytes +
                      unit * kUnitBytes) {}
  __device__ uint4* at(int rank, int source) const {
    return comm::at<uint4>(peers, rank, unit_of_first + source * kNormRows * kNormRowBytes);
  }
  __device__ void send(int rank, uint4 raw) const { kernels::store_term(at(rank, peers.rank), raw); }
  __device__ void send_to_all(uint4 raw) const {
    for (int distance = 1; distance < peers.size; ++distance) send(peer_behind(peers, distance), raw);
  }
  // What `source` has sent; anything when the group was aborted.
  __device__ uint4 take(int source) const {
    uint4* place = at(peers.rank, source);
    uint32_t polls = kernels::first_poll();
    uint4 raw;
    do {
      raw = kernels::load_term(place);
    } while (!kernels::has_come(raw) && !gives_up(peers, polls));
    kernels::forget_term(place);
    return raw;
  }
  // Fills in all ranks', but this one's unless that has been `sent` as well.
  template <int kMostRanks>
  __device__ void take_all(bool sent, uint4 (&raw)[kMostRanks]) const {
    const int except = sent ? -1 : peers.rank;
    constexpr int64_t kStep = kNormRows * kNormRowUnits;  // from a rank's place to the next one's
    uint4* first = at(peers.rank, 0);
    uint32_t polls = kernels::first_poll();
    bool come = false;
    do {
      come = true;
#pragma unroll
      for (int source = 0; source < kMostRanks; ++source) {
        if (source >= peers.size || source == except) continue;
        raw[source] = kernels::load_term(first + source * kStep);
        come = come && kernels::has_come(raw[source]);
      }
    } while (!come && !gives_up(peers, polls));
#pragma unroll
    for (int source = 0; source < kMostRanks; ++source) {
      if (source < peers.size && source != except) kernels::forget_term(first + source * kStep);
    }
  }
};

// Units of a row that a rank adds up, whole warps: threads that wait for others' sums must not keep those of
// their warp who make some.
__host__ __device__ inline int units_of_part(int units, int size) {
  constexpr int kLanes = 32;
  return ((units + size - 1) / size + kLanes - 1) / kLanes * kLanes;
}

template <typename T, int kMostRanks, bool kTwoTrips, bool kByClusters>
__global__ void __launch_bounds__(kernels::kMostNormThreads)
    norm_sums(const __grid_constant__ PeerView peers, const NormRows rows) {
  constexpr int kVec = kPerUnit<T>;
  kernels::ThreadsOfRow<kByClusters> threads;
  const int units = rows.width / kVec;
  const int unit = threads.thread();
  const int owner = kTwoTrips ? unit / units_of_part(units, peers.size) : peers.rank;
  for (int row = threads.first_row(); row < rows.rows; row += threads.rows_at_once()) {
    const int64_t begin = int64_t{row} * rows.width;
    T* residual = static_cast<T*>(rows.residual) + begin;
    uint64_t* calls = at<uint64_t>(peers, peers.rank, peers.layout.norm_calls) + row;
    uint64_t number = 0;
    uint4 mine = {};
    uint4 before = {};
    auto send = [&] {
      if (!rows.sent) kernels::wait_for_previous();
      kernels::let_next_start();
      number = load_relaxed(calls) + 1;
      if (unit >= units) return;
      // Past the first-level cache: the kernel in front may still be there.
      before = kernels::load_from_second_level(reinterpret_cast<const uint4*>(residual) + unit);
      if (rows.sent) return;
      mine = (reinterpret_cast<const uint4*>(static_cast<const T*>(rows.x) + begin))[unit];
      const TermPlaces places(peers, number, row, unit);
      if constexpr (kTwoTrips) {
        if (owner != peers.rank) places.send(owner, mine);
      } else {
        places.send_to_all(mine);
      }
    };
    auto take = [&](int element, float(&values)[kVec]) {
      const TermPlaces places(peers, number, row, unit);
      uint4 sum;
      if (owner == peers.rank) {
        uint4 raw[kMostRanks];
#pragma unroll
        for (int rank = 0; rank < kMostRanks; ++rank) raw[rank] = mine;
        places.take_all(rows.sent, raw);
        sum = sum_units<T>(raw, peers.size);
        if constexpr (kTwoTrips) places.send_to_all(sum);
      } else {
        sum = places.take(owner);
      }
      float of_stream[kVec];
      unpack<T>(before, of_stream);
      unpack<T>(sum, values);
      kernels::add_into<kVec>(of_stream, values, residual + element);
    };
    const T* weight = static_cast<const T*>(rows.weight);
    T* out = static_cast<T*>(rows.out) + begin;
    kernels::norm_row<kVec, true>(
        threads, rows.width, weight, rows.epsilon, send, take, static_cast<const T*>(residual), out);
    if (unit == 0) *calls = number;  // read by all before they added up
  }
  if (rows.sent) kernels::wait_for_previous();
}

// Blocks of a row: as many as find a multiprocessor of their own, since the loads and stores of one go one
// after the other, and two where rows are more. Fewer than four warps would wait longer for each other. One
// where the product in front sends its terms, beside whose blocks these wait, and where ranks share a GPU: a
// cluster might not find room beside blocks that wait for it.
int blocks_of_row(const PeerView& peers, const NormRows& rows) {
  if (!kernels::kCompiledForTeams || !kernels::has_clusters() || rows.sent || peers.shares_gpu) return 1;
  constexpr int kLeastThreads = 128;
  const int threads = kernels::norm_threads(rows.width, kPerUnit<__half>);
  int blocks = 8;
  while (blocks > 2 && rows.rows * blocks > kNormBlocks) blocks /= 2;
  while (blocks > 1 && threads < blocks * kLeastThreads) blocks /= 2;
  return blocks;
}

// For as many rows at once as a GPU has room for. Ranks that share one share that.
kernels::OverlappedLaunch launch_of(const PeerView& peers, const NormRows& rows, cudaStream_t stream) {
  const int blocks = blocks_of_row(peers, rows);
  const int threads = kernels::norm_threads((rows.width + blocks - 1) / blocks, kPerUnit<__half>);
  int at_once = 2 * threads * blocks <= kernels::kMostNormThreads ? 2 * kNormBlocks : kNormBlocks;
  if (peers.shares_gpu) at_once = kNormBlocks / peers.size;
  const int most = std::min(static_cast<int>(rows.rows), at_once);
  return {.grid = dim3(static_cast<unsigned>(most * blocks)),
          .threads = threads,
          .stream = stream,
          .cluster_blocks = blocks > 1 ? blocks : 0};
}

using Kernel = void (*)(PeerView, NormRows);

template <typename T, bool kTwoTrips, bool kByClusters>
Kernel kernel_of(int size) {
  if (size == 2) return norm_sums<T, 2, kTwoTrips, kByClusters>;
  return size <= 4 ? norm_sums<T, 4, kTwoTrips, kByClusters>
                   : norm_sums<T, kMaxPeerRanks, kTwoTrips, kByClusters>;
}

template <typename T, bool kTwoTrips>
Kernel kernel_of(int size, bool by_clusters) {
  if constexpr (kernels::kCompiledForTeams) {
    if (by_clusters) return kernel_of<T, kTwoTrips, true>(size);
  }
  return kernel_of<T, kTwoTrips, false>(size);
}

template <typename T>
Kernel kernel_of(int size, bool two_trips, bool by_clusters) {
  return two_trips ? kernel_of<T, true>(size, by_clusters) : kernel_of<T, false>(size, by_clusters);
}

Kernel kernel_of(DType dtype, int size, bool two_trips, bool by_clusters) {
  return dtype == DType::kF16 ? kernel_of<__half>(size, two_trips, by_clusters)
                              : kernel_of<__nv_bfloat16>(size, two_trips, by_clusters);
}

}  // namespace

cudaError_t sum_into_norm(
    const PeerView& peers, DType dtype, const NormRows& rows, bool two_trips, cudaStream_t stream) {
  CHECK(sums_into_norm(rows.rows, rows.width, dtype), "{} rows of {} {}", rows.rows, rows.width, dtype);
  const kernels::OverlappedLaunch launch = launch_of(peers, rows, stream);
  return launch_beside_peers(
      kernel_of(dtype, peers.size, two_trips, launch.cluster_blocks > 0), launch, peers, rows);
}

device::PeerTerms terms_of_rows(const PeerView& peers, int64_t width, bool two_trips) {
  constexpr int kVec = kPerUnit<__half>;
  std::byte* mine = peers.memory[peers.rank];
  device::PeerTerms terms{.row_bytes = kNormRowBytes,
                          .source_bytes = kNormRows * kNormRowBytes,
                          .slot_bytes = peers.size * kNormRows * kNormRowBytes,
                          .calls = reinterpret_cast<uint64_t*>(mine + peers.layout.norm_calls),
                          .aborted = peers.aborted,
                          .rank = peers.rank,
                          .size = peers.size};
  if (two_trips) terms.part_columns = kVec * units_of_part(static_cast<int>(width) / kVec, peers.size);
  for (int rank = 0; rank < peers.size; ++rank)
    terms.rows[rank] = peers.memory[rank] + peers.layout.norm_terms;
  return terms;
}

cudaError_t load_norm_sum_kernels(int size) {
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    for (bool two_trips : {false, true}) {
      for (bool by_clusters : {false, kernels::has_clusters()}) {
        cudaFuncAttributes attributes{};
        const void* kernel = reinterpret_cast<const void*>(kernel_of(dtype, size, two_trips, by_clusters));
        cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess) return error;
      }
    }
  }
  return cudaSuccess;
}

}  // namespace llm_dist::comm
