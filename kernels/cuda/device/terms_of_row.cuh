// The sum over ranks of a single row whose terms stand in this rank's memory (peer_terms.cuh), by kernels
// that have other work, too: every block that wants the row takes all terms. When all have, one of them ends
// the sum.
//
// Such a kernel does not wait for the product in front, which sends this rank's term, to end: it would wait
// for words on their way to the peers, too. It begins when all blocks of the product have waited for the
// kernels in front (send_term), so that it finds what those have left, the count of sums among it; and what
// it writes before it waits, the product does not read. It waits in the end, so that whoever waits for it
// waits for the product.
#pragma once

#include "kernels/cuda/device/pairs.cuh"
#include "kernels/cuda/device/peer_terms.cuh"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {

// Ranks whose terms a thread has on their way at once.
inline constexpr int kTermsAtOnce = 4;

// sums[i] ← the sum of the (first + i · step)-th eight elements, of `vecs`; in rank order, rounded once, as
// comm/p2p/all_reduce.h does. meanwhile() is called once, when the first terms are on their way. When nobody
// is to wait any more, sums are anything.
template <typename T, int kVecs, typename Meanwhile>
__device__ inline void sum_terms(const device::PeerTerms& terms,
                                 uint64_t number,
                                 int first,
                                 int step,
                                 int vecs,
                                 uint4 (&sums)[kVecs],
                                 Meanwhile&& meanwhile) {
  float totals[kVecs][kVecWidth] = {};
#pragma unroll 1
  for (int begin = 0; begin < terms.size; begin += kTermsAtOnce) {
    uint4 raw[kVecs][kTermsAtOnce];
    auto load = [&] {
      bool all_come = true;
#pragma unroll
      for (int s = 0; s < kTermsAtOnce; ++s) {
        const auto* from = reinterpret_cast<const uint4*>(term_at(terms, terms.rank, begin + s, number));
#pragma unroll
        for (int i = 0; i < kVecs; ++i) {
          const int v = first + i * step;
          raw[i][s] = {};
          if (begin + s < terms.size && v < vecs) raw[i][s] = load_term(from + v);
        }
      }
#pragma unroll
      for (int s = 0; s < kTermsAtOnce; ++s) {
#pragma unroll
        for (int i = 0; i < kVecs; ++i) all_come = all_come && has_come(raw[i][s]);
      }
      return all_come;
    };
    bool come = load();
    if (begin == 0) meanwhile();
    uint32_t polls = first_poll();
    while (!come && !gives_up(terms.aborted, polls)) come = load();
#pragma unroll
    for (int s = 0; s < kTermsAtOnce; ++s) {
      if (begin + s >= terms.size) break;
#pragma unroll
      for (int i = 0; i < kVecs; ++i) {
        float values[kVecWidth];
        unpack_eight<T>(raw[i][s], values);
#pragma unroll
        for (int e = 0; e < kVecWidth; ++e)
          totals[i][e] = begin + s == 0 ? values[e] : totals[i][e] + values[e];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) sums[i] = pack_eight<T>(totals[i], 1);
}

// By all threads of a block, once every block has taken what it wants: the next sum of this place may follow.
__device__ inline void end_sum_of_terms(const device::PeerTerms& terms, uint64_t number, int vecs) {
  for (int source = 0; source < terms.size; ++source) {
    auto* row = reinterpret_cast<uint4*>(term_at(terms, terms.rank, source, number));
    for (int v = static_cast<int>(threadIdx.x); v < vecs; v += static_cast<int>(blockDim.x))
      forget_term(row + v);
  }
  if (threadIdx.x == 0) *terms.calls = number;
}

}  // namespace llm_dist::kernels
