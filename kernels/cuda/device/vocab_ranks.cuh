// Where in the order of rank a running count or mass of a row's entries reaches a target: by a few
// histograms, each of what one place of the one before has. No sort.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/vocab_histogram.cuh"
#include "kernels/cuda/device/vocab_share.cuh"
#include "kernels/cuda/launch.h"

namespace llm_dist::kernels {

// Where a running count or mass, from the largest key on, reaches a target.
struct Boundary {
  uint32_t key = 0;
  Tail above;        // of the entries with larger keys
  uint64_t tie = 0;  // the mass of an entry with this one
};

// Finds boundaries of one row. The first histogram, of all entries by how far they lie below the largest, is
// the same for each: neighbours in it are logits an eighth of the temperature apart, so that few threads meet
// in one place, as they would by the upper bits. Then those of one place by their keys.
class Ranks {
 public:
  static constexpr int kHistograms = 3;

  // counts: whether boundaries of counts will be asked for.
  __device__ Ranks(const VocabShare& work, const Masses& masses, Histogram* histograms, bool counts)
      : work_(work), masses_(masses), histograms_(histograms), counts_(counts) {
    mass_ = work.team.sum(fill(histograms_[0], [&](uint32_t key) { return depth(key); }));
  }
  __device__ uint64_t mass() const { return mass_; }
  __device__ Boundary of_count(uint32_t target) {
    return find([target](const Tail& tail) { return tail.count >= target; });
  }
  __device__ Boundary of_mass(uint64_t target) {
    return find([target](const Tail& tail) { return tail.mass >= target; });
  }

 private:
  static constexpr int kNowhere = -1;

  // What is deep enough shares the last place.
  __device__ int depth(uint32_t key) const {
    constexpr float kPlacesOfUnit = 8;
    const float below = (masses_.max - logit_of_bits(key)) * masses_.inverse_temperature * kPlacesOfUnit;
    return static_cast<int>(fminf(below, static_cast<float>(Histogram::kPlaces - 1)));
  }
  // place_of(key): kNowhere for those that it leaves out. Returns the mass of this thread's entries.
  template <typename PlaceOf>
  __device__ uint64_t fill(Histogram& histogram, PlaceOf&& place_of) const {
    histogram.clear();
    __syncthreads();
    uint64_t sum = 0;
    work_.each([&](int v) {
      const uint32_t key = work_.key(v);
      const int place = place_of(key);
      if (place == kNowhere) return;
      const uint64_t mass = masses_(key);
      sum += mass;
      histogram.add(place, mass, counts_);
    });
    return sum;
  }
  // The place in which the target is reached; what lies above it is added to `above`. A thread has a place.
  template <typename Reached>
  __device__ int place_reached(const Histogram& histogram, Reached&& reached, Tail& above) const {
    static_assert(Histogram::kPlaces <= kSampleThreads);
    constexpr int kWarps = Histogram::kPlaces / kWarpSize;
    __shared__ uint64_t masses[kWarps + 1];
    __shared__ uint32_t counts[kWarps + 1];
    __shared__ int found;
    const int place = static_cast<int>(threadIdx.x);
    const int warp = place / kWarpSize;
    Tail mine;
    Tail until;  // and with this one
    if (warp < kWarps) {
      mine = histogram.of_team(place, counts_);
      until = {warp_inclusive_sum(mine.mass), counts_ ? warp_inclusive_sum(mine.count) : 0};
      if (place % kWarpSize == kWarpSize - 1) {
        masses[warp] = until.mass;
        counts[warp] = until.count;
      }
    }
    __syncthreads();
    if (warp < kWarps) {
      until.mass += above.mass;
      until.count += above.count;
#pragma unroll
      for (int i = 0; i < kWarps - 1; ++i) {
        until.mass += i < warp ? masses[i] : 0;
        until.count += i < warp ? counts[i] : 0;
      }
      const Tail before{until.mass - mine.mass, until.count - mine.count};
      if (reached(until) && !reached(before)) {
        masses[kWarps] = before.mass;
        counts[kWarps] = before.count;
        found = place;
      }
    }
    __syncthreads();
    above = {masses[kWarps], counts[kWarps]};
    const int seen = found;
    __syncthreads();
    return seen;
  }
  // The least and the largest key of those in a place of the first histogram.
  struct Range {
    uint32_t first;
    uint32_t last;
  };
  __device__ Range range_of(int place) const {
    uint32_t least = ~0u;
    uint32_t largest = 0;
    work_.each([&](int v) {
      const uint32_t key = work_.key(v);
      if (depth(key) != place) return;
      least = min(least, key);
      largest = max(largest, key);
    });
    const uint64_t both = work_.team.reduce(uint64_t{largest} << 32 | ~least, [](uint64_t a, uint64_t b) {
      const uint64_t upper = max(a >> 32, b >> 32);
      return upper << 32 | max(static_cast<uint32_t>(a), static_cast<uint32_t>(b));
    });
    return {~static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
  }
  // reached(tail): the same for all that is larger, and for everything together.
  template <typename Reached>
  __device__ Boundary find(Reached&& reached) {
    constexpr int kBits = 8;
    static_assert(1 << kBits == Histogram::kPlaces);
    Boundary boundary;
    auto [first, last] = range_of(place_reached(histograms_[0], reached, boundary.above));
    while (first < last) {
      const int shift = max(0, 32 - __clz(static_cast<int>(last - first)) - kBits);
      // In turns: the others may still read the one before.
      turn_ ^= 1;
      Histogram& histogram = histograms_[1 + turn_];
      fill(histogram, [&](uint32_t key) {
        if (key < first || key > last) return kNowhere;
        return Histogram::kPlaces - 1 - static_cast<int>((key - first) >> shift);
      });
      meet_team();
      const int place = place_reached(histogram, reached, boundary.above);
      first += static_cast<uint32_t>(Histogram::kPlaces - 1 - place) << shift;
      last = min(last, first + ((1u << shift) - 1));
    }
    boundary.key = first;
    boundary.tie = masses_(first);
    return boundary;
  }

  const VocabShare& work_;
  const Masses& masses_;
  Histogram* histograms_;
  bool counts_;
  uint64_t mass_ = 0;
  int turn_ = 0;
};

}  // namespace llm_dist::kernels
