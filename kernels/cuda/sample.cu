// Sampling: a team of blocks a row, each with its share of the vocabulary in shared memory, as the bits of
// logits in their order. Top-k, top-p and the draw are all the question "where, in the order of rank, does a
// running count or mass reach a target?", answered by a few histograms, each of what one bin of the one
// before has; no sort. Masses are whole numbers, so that they are the same in whatever order they are added
// up.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/overlap.cuh"
#include "kernels/cuda/device/vocab_ranks.cuh"
#include "kernels/cuda/device/vocab_share.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_memory.h"
#include "kernels/philox.h"
#include "kernels/sample.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = kSampleThreads;
constexpr int kResidents = 3;                // blocks that a processor has room for
constexpr uint32_t kMaskedKey = 0x007fffff;  // of −inf

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

__device__ bool leads_team() { return block_of_team() == 0 && threadIdx.x == 0; }

// Eight loads at a time are on their way.
__device__ void load_keys(const SampleArgs& args, int64_t row, const VocabShare& work) {
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

// The best entry with a key (vocab_key()) below `below`.
__device__ uint64_t best_below(const VocabShare& work, uint64_t below) {
  uint64_t best = 0;
  work.each([&](int v) {
    const uint64_t key = vocab_key_of_bits(work.key(v), v);
    if (key < below && key > best) best = key;
  });
  return work.team.reduce(best, MaxOp());
}

// Of the logits as the model gave them: log of the normaliser; the most probable ones go to the record.
__device__ float rank_raw_logits(const VocabShare& work, int num_top, int32_t* record) {
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
__device__ void apply_biases(const VocabShare& work, const SampleRow& row, const int32_t* rule_words) {
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
__device__ void apply_masks(const VocabShare& work, const SampleRow& row, const RowContext& context) {
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

__device__ void apply_penalties(const VocabShare& work, const SampleRow& row, const int32_t* history) {
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

// found(id) is called by one thread of the team: that of tie number `ordinal` (from 0) at the key, in id
// order.
template <typename Found>
__device__ void find_tie(const VocabShare& work, uint32_t key, uint32_t ordinal, Found&& found) {
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
__device__ void draw_ranked(const VocabShare& work,
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
__device__ void draw_in_id_order(const VocabShare& work,
                                 const Masses& masses,
                                 double uniform,
                                 Found&& found) {
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
__device__ int32_t smallest_unmasked(const VocabShare& work,
                                     const SampleRow& row,
                                     const RowContext& context) {
  work.each([&](int v) { work.set(v, 0.0f); });
  __syncthreads();
  apply_masks(work, row, context);
  const uint64_t best = best_below(work, ~uint64_t{0});
  if (value_of_key(best) != -INFINITY) return id_of_key(best);
  return row.rules.num_allowed > 0 ? context.rule_words[0] : 0;
}

// found(id) is called by one thread of the team.
template <typename Found>
__device__ void choose_token(const VocabShare& work,
                             const SampleRow& row,
                             const RowContext& context,
                             Histogram* histograms,
                             Found&& found) {
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
  const VocabShare work{.keys = args.keys == nullptr ? shared_keys : args.keys + i * args.vocab + first,
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
  const SampleMemory memory = SampleMemory::of(params.vocab_size, cuda_state.options().row_teams);
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
  // The most of any vocabulary: engines of one process share the attribute.
  cudaError_t error = cudaFuncSetAttribute(sample_rows,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(SampleMemory::most_shared_bytes(memory.blocks)));
  if (error == cudaSuccess) error = launch_overlapped(sample_rows, launch, args);
  cuda.check(error, "sample");
}

}  // namespace llm_dist::kernels
