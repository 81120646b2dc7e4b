// Sampling: a team of blocks a row, each with its share of the vocabulary in shared memory, as the bits of
// logits in their order. Top-k, top-p and the draw are all the question "where, in the order of rank, does a
// running count or mass reach a target?", answered by a few histograms, each of what one bin of the one
// before has; no sort. Masses are whole numbers, so that they are the same in whatever order they are added
// up.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/row_team.cuh"
#include "kernels/cuda/device/vocab_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/philox.h"
#include "kernels/sample.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kResidents = 3;                // blocks that a processor has room for
constexpr uint32_t kMaskedKey = 0x007fffff;  // of −inf

// Of the most probable token; of all entries together it fits 64 bits.
constexpr int kMassBits = 44;
constexpr int64_t kMostVocab = int64_t{1} << (63 - kMassBits);

struct SampleArgs {
  const float* logits;
  int64_t shard_stride;
  int64_t row_stride;
  int shard_width;
  int vocab;
  RowView<const uint8_t> rows;
  RowView<const int32_t> history;
  const int32_t* rule_words;
  RowView<int32_t> records;
  uint32_t* counts;  // [n, vocab]
  uint32_t* keys;    // [n, vocab]; none where they are in shared memory
};

__device__ float raw_logit(const SampleArgs& args, int64_t row, int v) {
  return clean_logit(
      args.logits[v / args.shard_width * args.shard_stride + row * args.row_stride + v % args.shard_width]);
}

// A block's share of a row: the keys (ordered_bits()) of ids [first, end), after what the row's parameters do
// to them.
struct Work {
  uint32_t* keys;
  uint32_t* counts;
  int vocab;
  int first;
  int end;
  RowTeam& team;

  __device__ uint32_t& key(int v) const { return keys[v - first]; }
  __device__ float logit(int v) const { return logit_of_bits(key(v)); }
  __device__ void set(int v, float logit) const { key(v) = ordered_bits(logit); }
  __device__ bool has(int v) const { return v >= first && v < end; }

  // Ids of this thread, interleaved with the other threads'.
  template <typename Run>
  __device__ void each(Run&& run) const {
#pragma unroll 4
    for (int v = first + static_cast<int>(threadIdx.x); v < end; v += kThreads) run(v);
  }
  // Ids of this thread, consecutive, so that threads follow one another in id order; an odd number, for the
  // sake of shared memory's banks.
  __device__ int run_length() const { return (end - first + kThreads - 1) / kThreads | 1; }
  __device__ int first_of_run() const {
    return min(end, first + static_cast<int>(threadIdx.x) * run_length());
  }
  __device__ int end_of_run() const { return min(end, first_of_run() + run_length()); }
};

__device__ bool leads_team() { return block_of_team() == 0 && threadIdx.x == 0; }

// Eight loads at a time are on their way.
__device__ void load_keys(const SampleArgs& args, int64_t row, const Work& work) {
  constexpr int kAtOnce = 8;
  const float* logits = args.logits + row * args.row_stride;
  int v = work.first + static_cast<int>(threadIdx.x);
  int shard = v / args.shard_width;
  int column = v % args.shard_width;
  while (v < work.end) {
    float values[kAtOnce];
    const int begin = v;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (v < work.end) values[i] = logits[shard * args.shard_stride + column];
      v += kThreads;
      column += kThreads;
      while (column >= args.shard_width) {
        column -= args.shard_width;
        ++shard;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (begin + i * kThreads < work.end) work.set(begin + i * kThreads, clean_logit(values[i]));
    }
  }
}

// Of keys, as parts of the most probable one's.
struct Masses {
  float max;
  float inverse_temperature = 1;
  float min_p = 0;  // what has a smaller weight has none, and what is no number

  __device__ uint64_t operator()(uint32_t key) const {
    const float weight = expf((logit_of_bits(key) - max) * inverse_temperature);
    return weight >= min_p ? __float2ull_rn(weight * static_cast<float>(uint64_t{1} << kMassBits)) : 0;
  }
};

// The best entry with a key (vocab_key()) below `below`.
__device__ uint64_t best_below(const Work& work, uint64_t below) {
  uint64_t best = 0;
  work.each([&](int v) {
    const uint64_t key = vocab_key_of_bits(work.key(v), v);
    if (key < below && key > best) best = key;
  });
  return work.team.reduce(best, MaxOp());
}

// Of the logits as the model gave them: log of the normaliser; the most probable ones go to the record.
__device__ float rank_raw_logits(const Work& work, int num_top, int32_t* record) {
  uint64_t key = best_below(work, ~uint64_t{0});
  const float max = value_of_key(key);
  const Masses masses{.max = max};
  uint64_t mass = 0;
  work.each([&](int v) { mass += masses(work.key(v)); });
  mass = work.team.sum(mass);
  const double norm = static_cast<double>(mass) / static_cast<double>(uint64_t{1} << kMassBits);
  const float log_norm = max == -INFINITY ? 0.0f : static_cast<float>(static_cast<double>(max) + log(norm));
  num_top = min(num_top, work.vocab);
  if (leads_team()) record[2] = num_top > 0 ? num_top : 0;
  for (int i = 0; i < num_top; ++i) {
    if (leads_team()) {
      record[3 + i] = id_of_key(key);
      record[3 + kMaxTopLogprobs + i] = __float_as_int(value_of_key(key) - log_norm);
    }
    key = best_below(work, key);
  }
  return log_norm;
}

// What a row points to.
struct RowContext {
  const int32_t* history;      // tokens [0, row.position)
  const int32_t* rule_words;   // of row.rules
  const int32_t* more_banned;  // [row.num_more_banned]
};

// Each token has one bias at most, so no two threads meet.
__device__ void apply_biases(const Work& work, const SampleRow& row, const int32_t* rule_words) {
  const int32_t* biases = rule_words + row.rules.num_allowed;
  for (int i = static_cast<int>(threadIdx.x); i < row.rules.num_biases; i += kThreads) {
    const int32_t id = biases[2 * i];
    if (work.has(id)) work.set(id, work.logit(id) + __int_as_float(biases[2 * i + 1]));
  }
  __syncthreads();
}

// Ids ascend.
__device__ bool is_listed(const int32_t* ids, int count, int32_t id) {
  int begin = 0;
  while (count > 0) {
    const int half = count / 2;
    if (ids[begin + half] == id) return true;
    if (ids[begin + half] < id) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return false;
}

__device__ bool equal_ids(const int32_t* a, const int32_t* b, int count) {
  for (int i = 0; i < count; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Threads may mask the same entry: they write the same.
__device__ void apply_masks(const Work& work, const SampleRow& row, const RowContext& context) {
  const int first = static_cast<int>(threadIdx.x);
  const auto mask = [&](int32_t id) {
    if (work.has(id)) work.key(id) = kMaskedKey;
  };
  for (int i = first; i < row.num_banned; i += kThreads) mask(row.banned[i]);
  for (int i = first; i < row.num_more_banned; i += kThreads) mask(context.more_banned[i]);
  if (row.rules.num_allowed > 0) {
    work.each([&](int v) {
      if (!is_listed(context.rule_words, row.rules.num_allowed, v)) mask(v);
    });
  }
  const int32_t* bans = context.rule_words + row.rules.num_allowed + 2 * row.rules.num_biases;
  for (int i = first; i < row.rules.num_bans; i += kThreads) {
    const int32_t* run = context.rule_words + bans[2 * i];
    const int before = bans[2 * i + 1] - 1;
    if (row.position - row.prompt_len < before) continue;
    if (equal_ids(run, context.history + row.position - before, before)) mask(run[before]);
  }
  const int n = row.no_repeat_ngram_size;
  if (n > 0 && row.position >= n) {
    const int32_t* tail = context.history + row.position - (n - 1);
    for (int i = first; i <= row.position - n; i += kThreads) {
      if (equal_ids(context.history + i, tail, n - 1)) mask(context.history[i + n - 1]);
    }
  }
  __syncthreads();
}

__device__ void apply_penalties(const Work& work, const SampleRow& row, const int32_t* history) {
  if (row.repetition_penalty == 1.0f && row.presence_penalty == 0.0f && row.frequency_penalty == 0.0f) return;
  // Bit 0: it occurred; above: how often in the output.
  work.each([&](int v) { work.counts[v] = 0; });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < row.position; i += kThreads) {
    const int32_t id = history[i];
    if (!work.has(id)) continue;
    atomicOr(work.counts + id, 1u);
    if (i >= row.prompt_len) atomicAdd(work.counts + id, 2u);
  }
  __syncthreads();
  work.each([&](int v) {
    const uint32_t count = work.counts[v];
    if (count == 0) return;
    const auto in_output = static_cast<float>(count >> 1);
    float logit = work.logit(v);
    if (row.repetition_penalty != 1.0f) {
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (in_output > 0) logit -= row.presence_penalty + row.frequency_penalty * in_output;
    work.set(v, clean_logit(logit));
  });
  __syncthreads();
}

struct Tail {
  uint64_t mass = 0;
  uint32_t count = 0;  // where counts are wanted
};

// Of entries by places, the largest first. A mass is two words.
struct Histogram {
  static constexpr int kPlaces = 256;
  uint32_t low[kPlaces];
  uint32_t high[kPlaces];
  uint32_t count[kPlaces];

  __device__ void clear() {
    for (int i = static_cast<int>(threadIdx.x); i < kPlaces; i += kThreads) low[i] = high[i] = count[i] = 0;
  }
  __device__ void add(int place, uint64_t mass, bool counts) {
    if (counts) atomicAdd(count + place, 1u);
    if (mass == 0) return;
    const auto lower = static_cast<uint32_t>(mass);
    const uint32_t carried = atomicAdd(low + place, lower) + lower < lower ? 1 : 0;
    if (const uint32_t upper = static_cast<uint32_t>(mass >> 32) + carried; upper > 0)
      atomicAdd(high + place, upper);
  }
  // Of all blocks of the team, several of which are asked at once.
  __device__ Tail of_team(int place, bool counts) const {
    constexpr int kAtOnce = 4;
    const int blocks = team_blocks();
    Tail sum;
#pragma unroll 1
    for (int first = 0; first < blocks; first += kAtOnce) {
      Tail some[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int block = min(first + i, blocks - 1);
        some[i].mass = load_from_team(low + place, block) | uint64_t{load_from_team(high + place, block)}
                                                                << 32;
        if (counts) some[i].count = load_from_team(count + place, block);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= blocks) continue;
        sum.mass += some[i].mass;
        sum.count += some[i].count;
      }
    }
    return sum;
  }
};

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
  __device__ Ranks(const Work& work, const Masses& masses, Histogram* histograms, bool counts)
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
    static_assert(Histogram::kPlaces <= kThreads);
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

  const Work& work_;
  const Masses& masses_;
  Histogram* histograms_;
  bool counts_;
  uint64_t mass_ = 0;
  int turn_ = 0;
};

// found(id) is called by one thread of the team: that of tie number `ordinal` (from 0) at the key, in id
// order.
template <typename Found>
__device__ void find_tie(const Work& work, uint32_t key, uint32_t ordinal, Found&& found) {
  uint32_t mine = 0;
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) mine += work.key(v) == key ? 1 : 0;
  uint32_t before = work.team.sums(mine).before;
  if (ordinal < before || ordinal >= before + mine) return;
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) {
    if (work.key(v) != key) continue;
    if (before++ == ordinal) found(v);
  }
}

// Ranked sampling: the mass that top-k, top-p and min-p leave is a prefix of the order of rank, so the draw
// only needs how much it is.
template <typename Found>
__device__ void draw_ranked(const Work& work,
                            const SampleRow& row,
                            const Masses& masses,
                            Histogram* histograms,
                            double uniform,
                            Found&& found) {
  const bool cuts = row.top_k > 0 && row.top_k < work.vocab;
  Ranks ranks(work, masses, histograms, cuts);
  uint64_t mass = ranks.mass();
  if (cuts) {
    const Boundary last = ranks.of_count(static_cast<uint32_t>(row.top_k));
    mass = last.above.mass + (static_cast<uint32_t>(row.top_k) - last.above.count) * last.tie;
  }
  if (row.top_p < 1.0f) {
    const double wanted = ceil(static_cast<double>(row.top_p) * static_cast<double>(mass));
    const uint64_t target = min(static_cast<uint64_t>(fmax(wanted, 1.0)), mass);
    const Boundary last = ranks.of_mass(target);
    const uint64_t ties = (target - last.above.mass + last.tie - 1) / last.tie;
    mass = min(mass, last.above.mass + ties * last.tie);
  }
  if (row.min_p > 0) {
    uint64_t kept = 0;
    const Masses above{masses.max, masses.inverse_temperature, fminf(row.min_p, 1.0f)};
    work.each([&](int v) { kept += above(work.key(v)); });
    // At least the most probable one's.
    mass = min(mass, work.team.sum(kept));
  }
  const uint64_t target = min(static_cast<uint64_t>(uniform * static_cast<double>(mass)), mass - 1);
  const Boundary drawn = ranks.of_mass(target + 1);
  find_tie(work, drawn.key, static_cast<uint32_t>((target - drawn.above.mass) / drawn.tie), found);
}

// Inverse of the cumulative distribution in id order.
template <typename Found>
__device__ void draw_in_id_order(const Work& work, const Masses& masses, double uniform, Found&& found) {
  uint64_t mine = 0;
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) mine += masses(work.key(v));
  const auto sums = work.team.sums(mine);
  const uint64_t target = min(static_cast<uint64_t>(uniform * static_cast<double>(sums.all)), sums.all - 1);
  uint64_t mass = sums.before;
  if (target < mass || target >= mass + mine) return;
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) {
    mass += masses(work.key(v));
    if (mass > target) return found(v);
  }
}

// Where there is nothing to choose by.
__device__ int32_t smallest_unmasked(const Work& work, const SampleRow& row, const RowContext& context) {
  work.each([&](int v) { work.set(v, 0.0f); });
  __syncthreads();
  apply_masks(work, row, context);
  const uint64_t best = best_below(work, ~uint64_t{0});
  if (value_of_key(best) != -INFINITY) return id_of_key(best);
  return row.rules.num_allowed > 0 ? context.rule_words[0] : 0;
}

// found(id) is called by one thread of the team.
template <typename Found>
__device__ void choose_token(
    const Work& work, const SampleRow& row, const RowContext& context, Histogram* histograms, Found&& found) {
  if (row.known_token >= 0) {
    if (leads_team()) found(row.known_token);
    return;
  }
  apply_biases(work, row, context.rule_words);
  apply_masks(work, row, context);
  apply_penalties(work, row, context.history);
  const uint64_t best = best_below(work, ~uint64_t{0});
  const float max = value_of_key(best);
  const bool is_masked = max == -INFINITY;
  if (is_masked || !(row.temperature > 0)) {
    const int32_t token = is_masked ? smallest_unmasked(work, row, context) : id_of_key(best);
    if (leads_team()) found(token);
    return;
  }
  const float inverse_temperature = fminf(1 / row.temperature, 3.402823466e38f);
  const double uniform = sampling_uniform(row.seed, static_cast<uint32_t>(row.position), row.choice);
  const bool ranked = (row.top_k > 0 && row.top_k < work.vocab) || row.top_p < 1.0f;
  if (ranked) return draw_ranked(work, row, {max, inverse_temperature}, histograms, uniform, found);
  draw_in_id_order(work, {max, inverse_temperature, fminf(fmaxf(row.min_p, 0.0f), 1.0f)}, uniform, found);
}

// Grid: rows × blocks of a team.
__global__ void __launch_bounds__(kThreads, kResidents) sample_rows(SampleArgs args) {
  wait_for_previous();
  extern __shared__ uint32_t shared_keys[];
  __shared__ Histogram histograms[Ranks::kHistograms];
  const int blocks = team_blocks();
  const int64_t i = blockIdx.x / blocks;
  const auto& row = *reinterpret_cast<const SampleRow*>(args.rows.row(i));
  int32_t* record = args.records.row(i);
  if (block_of_team() == 0) {
    for (int w = static_cast<int>(threadIdx.x); w < static_cast<int>(kSampleRecordWords); w += kThreads)
      record[w] = 0;
    __syncthreads();
  }
  if (row.slot < 0) return;
  const int share = (args.vocab + blocks - 1) / blocks;
  const int first = min(args.vocab, block_of_team() * share);
  RowTeam team;
  const Work work{.keys = args.keys == nullptr ? shared_keys : args.keys + i * args.vocab + first,
                  .counts = args.counts + i * args.vocab,
                  .vocab = args.vocab,
                  .first = first,
                  .end = min(args.vocab, first + share),
                  .team = team};
  load_keys(args, i, work);
  __syncthreads();
  float log_norm = 0;
  if (row.num_logprobs >= 0) log_norm = rank_raw_logits(work, row.num_logprobs, record);
  __syncthreads();
  const RowContext context{
      args.history.row(row.slot), args.rule_words + row.rules_begin, args.rule_words + row.more_banned_begin};
  meet_team();  // the record is zeroed
  choose_token(work, row, context, histograms, [&](int32_t token) {
    record[0] = token;
    if (row.num_logprobs >= 0)
      record[1] = __float_as_int(token < args.vocab ? raw_logit(args, i, token) - log_norm : -INFINITY);
  });
  meet_team();  // nobody reads another's shared memory any more
}

}  // namespace

void sample_cuda(OpState& state, device::Stream& stream, const SampleParams& params) {
  const Tensor& logits = params.logits;
  CHECK(logits.dtype == DType::kF32 && logits.rank == 3 && logits.stride(2) == 1,
        "logits {}",
        logits.to_string());
  CHECK(params.vocab_size > 0 && params.vocab_size <= logits.dim(0) * logits.dim(2) &&
            params.vocab_size <= kMostVocab,
        "vocabulary of {} in logits {}",
        params.vocab_size,
        logits.to_string());
  const int64_t n = logits.dim(1);
  CHECK(params.rows.dim(0) == n && params.rows.dim(1) == static_cast<int64_t>(sizeof(SampleRow)) &&
            params.records.dim(0) == n && params.records.dim(1) == kSampleRecordWords,
        "{} rows, records {}",
        params.rows.dim(0),
        params.records.to_string());
  CudaOpState& cuda_state = as_cuda_state(state);
  CHECK(n <= cuda_state.options().max_sequences && params.vocab_size <= cuda_state.options().vocab_size,
        "{} rows of {} entries; the ops were made for {} of {}",
        n,
        params.vocab_size,
        cuda_state.options().max_sequences,
        cuda_state.options().vocab_size);
  device::CudaStream& cuda = device::as_cuda(stream);
  if (n == 0 || !cuda.enter()) return;
  const SampleMemory memory = SampleMemory::of(params.vocab_size);
  uint32_t* counts = cuda_state.sample_memory();
  const SampleArgs args{.logits = static_cast<const float*>(logits.data),
                        .shard_stride = logits.stride(0),
                        .row_stride = logits.stride(1),
                        .shard_width = static_cast<int>(logits.dim(2)),
                        .vocab = static_cast<int>(params.vocab_size),
                        .rows = rows_as<const uint8_t>(params.rows),
                        .history = rows_as<const int32_t>(params.history),
                        .rule_words = static_cast<const int32_t*>(params.rule_words.data),
                        .records = rows_as<int32_t>(params.records),
                        .counts = counts,
                        .keys = memory.shared_bytes > 0 ? nullptr : counts + n * params.vocab_size};
  const OverlappedLaunch launch{.grid = dim3(static_cast<unsigned>(n * memory.blocks)),
                                .threads = kThreads,
                                .stream = cuda.handle(),
                                .shared_bytes = static_cast<int>(memory.shared_bytes),
                                .cluster_blocks = memory.blocks > 1 ? memory.blocks : 0};
  (void)cudaFuncSetAttribute(sample_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, launch.shared_bytes);
  cuda.check(launch_overlapped(sample_rows, launch, args), "sample");
}

}  // namespace llm_dist::kernels
