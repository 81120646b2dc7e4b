// Sampling: a block a row, over a copy of the row's logits in scratch memory. Top-k, top-p and the draw are
// all the question "where, in the order of rank, does a running count or mass reach a target?", answered by
// bisection over the logits' bits; no sort. Sums are taken in an order that depends on the vocabulary's size
// alone.
#include "kernels/cuda/cuda_op_state.h"
#include "kernels/cuda/device/vocab_key.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/philox.h"
#include "kernels/sample.h"

namespace llm_dist::kernels {
namespace {

constexpr int kThreads = 1024;

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
  float* scratch;  // [2, n, vocab]
};

// One row's working memory: the logits after penalties, and counts, then weights.
struct Work {
  float* logits;
  float* weights;
  int vocab;

  // Ids of this thread, interleaved with the other threads'.
  template <typename Run>
  __device__ void each(Run&& run) const {
    for (int v = static_cast<int>(threadIdx.x); v < vocab; v += kThreads) run(v);
  }
  // Ids of this thread, consecutive, so that threads follow one another in id order.
  __device__ int first_of_run() const { return min(vocab, static_cast<int>(threadIdx.x) * run_length()); }
  __device__ int end_of_run() const { return min(vocab, first_of_run() + run_length()); }
  __device__ int run_length() const { return (vocab + kThreads - 1) / kThreads; }
};

__device__ float raw_logit(const SampleArgs& args, int64_t row, int v) {
  return clean_logit(
      args.logits[v / args.shard_width * args.shard_stride + row * args.row_stride + v % args.shard_width]);
}

// The best entry with a key below `below`.
__device__ uint64_t best_below(const Work& work, uint64_t below) {
  uint64_t best = 0;
  work.each([&](int v) {
    const uint64_t key = vocab_key(work.logits[v], v);
    if (key < below && key > best) best = key;
  });
  return block_reduce(best, MaxOp());
}

// Of the logits as the model gave them: log of the normaliser; the most probable ones go to the record.
__device__ float rank_raw_logits(const Work& work, int num_top, int32_t* record) {
  uint64_t key = best_below(work, ~uint64_t{0});
  const float max = value_of_key(key);
  double mass = 0;
  work.each([&](int v) { mass += static_cast<double>(expf(work.logits[v] - max)); });
  mass = block_reduce(mass, AddOp());
  const float log_norm = max == -INFINITY ? 0.0f : static_cast<float>(static_cast<double>(max) + log(mass));
  num_top = min(num_top, work.vocab);
  if (threadIdx.x == 0) record[2] = num_top > 0 ? num_top : 0;
  for (int i = 0; i < num_top; ++i) {
    if (threadIdx.x == 0) {
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
    if (id >= 0 && id < work.vocab) work.logits[id] += __int_as_float(biases[2 * i + 1]);
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
    if (id >= 0 && id < work.vocab) work.logits[id] = -INFINITY;
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
  auto* counts = reinterpret_cast<uint32_t*>(work.weights);
  work.each([&](int v) { counts[v] = 0; });
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < row.position; i += kThreads) {
    const int32_t id = history[i];
    if (id < 0 || id >= work.vocab) continue;
    atomicOr(counts + id, 1u);
    if (i >= row.prompt_len) atomicAdd(counts + id, 2u);
  }
  __syncthreads();
  work.each([&](int v) {
    if (counts[v] == 0) return;
    const auto in_output = static_cast<float>(counts[v] >> 1);
    float logit = work.logits[v];
    if (row.repetition_penalty != 1.0f) {
      logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    }
    if (in_output > 0) logit -= row.presence_penalty + row.frequency_penalty * in_output;
    work.logits[v] = clean_logit(logit);
  });
  __syncthreads();
}

struct Tail {
  double mass;  // of the entries whose ordered bits are at least a threshold
  int count;
};
__device__ Tail tail_from(const Work& work, uint32_t threshold) {
  Tail tail{0, 0};
  work.each([&](int v) {
    if (ordered_bits(work.logits[v]) < threshold) return;
    tail.mass += static_cast<double>(work.weights[v]);
    ++tail.count;
  });
  return {block_reduce(tail.mass, AddOp()), block_reduce(tail.count, AddOp())};
}

// The largest threshold from which on reached(tail) holds; 0 when even everything together does not.
template <typename Reached>
__device__ uint32_t bisect(const Work& work, Reached&& reached) {
  uint32_t threshold = 0;
  for (int bit = 31; bit >= 0; --bit) {
    const uint32_t candidate = threshold | (1u << bit);
    if (reached(tail_from(work, candidate))) threshold = candidate;
  }
  return threshold;
}

// What stands above a threshold, and the ties at it.
struct Boundary {
  Tail above;
  int ties;
  double tie_weight;
};
__device__ Boundary boundary_at(const Work& work, uint32_t threshold, float max, float inverse_temperature) {
  const Tail from = tail_from(work, threshold);
  const Tail above = threshold == 0xffffffffu ? Tail{0, 0} : tail_from(work, threshold + 1);
  const float weight = expf((logit_of_bits(threshold) - max) * inverse_temperature);
  return {above, from.count - above.count, static_cast<double>(weight)};
}

// The id of tie number `ordinal` (from 0) at the threshold, in id order.
__device__ int32_t tie_id(const Work& work, uint32_t threshold, int ordinal) {
  __shared__ int32_t found;
  int mine = 0;
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) {
    mine += ordered_bits(work.logits[v]) == threshold ? 1 : 0;
  }
  int before = block_exclusive_sum(mine);
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) {
    if (ordered_bits(work.logits[v]) != threshold) continue;
    if (before == ordinal) found = v;
    ++before;
  }
  __syncthreads();
  return found;
}

// Ranked sampling: the mass that top-k, top-p and min-p leave is a prefix of the order of rank, so the draw
// only needs how much it is.
__device__ int32_t
draw_ranked(const Work& work, const SampleRow& row, float max, float inverse_temperature, double uniform) {
  double mass = 0;
  if (row.top_k > 0 && row.top_k < work.vocab) {
    const uint32_t at = bisect(work, [&](const Tail& tail) { return tail.count >= row.top_k; });
    const Boundary boundary = boundary_at(work, at, max, inverse_temperature);
    mass = boundary.above.mass + (row.top_k - boundary.above.count) * boundary.tie_weight;
  } else {
    mass = tail_from(work, 0).mass;
  }
  if (row.top_p < 1.0f) {
    const double target = static_cast<double>(row.top_p) * mass;
    const uint32_t at = bisect(work, [&](const Tail& tail) { return tail.mass >= target; });
    const Boundary boundary = boundary_at(work, at, max, inverse_temperature);
    const double wanted = ceil((target - boundary.above.mass) / boundary.tie_weight);
    const double ties = fmin(fmax(wanted, 1.0), static_cast<double>(boundary.ties));
    if (boundary.tie_weight > 0) mass = fmin(mass, boundary.above.mass + ties * boundary.tie_weight);
  }
  if (row.min_p > 0) {
    double kept = 0;
    work.each([&](int v) {
      if (work.weights[v] >= row.min_p) kept += static_cast<double>(work.weights[v]);
    });
    kept = block_reduce(kept, AddOp());
    // At least the most probable one, whose weight is 1.
    mass = fmin(mass, fmax(kept, 1.0));
  }
  const double target = uniform * mass;
  const uint32_t at = bisect(work, [&](const Tail& tail) { return tail.mass > target; });
  const Boundary boundary = boundary_at(work, at, max, inverse_temperature);
  const double skipped = floor((target - boundary.above.mass) / boundary.tie_weight);
  const double last = static_cast<double>(boundary.ties - 1);
  return tie_id(work, at, static_cast<int>(fmin(fmax(skipped, 0.0), last)));
}

// Inverse of the cumulative distribution in id order.
__device__ int32_t draw_in_id_order(const Work& work, float min_p, double uniform) {
  __shared__ int32_t drawn;
  const auto weight = [&](int v) {
    return work.weights[v] >= min_p ? static_cast<double>(work.weights[v]) : 0.0;
  };
  double mine = 0;
  int32_t last = -1;
  for (int v = work.first_of_run(); v < work.end_of_run(); ++v) {
    mine += weight(v);
    if (weight(v) > 0) last = v;
  }
  const double total = block_reduce(mine, AddOp());
  const double target = uniform * total;
  double mass = block_exclusive_sum(mine);
  // Rounding may leave nobody: then the last entry of all that has weight.
  const int32_t fallback = block_reduce(last, MaxOp());
  if (threadIdx.x == 0) drawn = fallback;
  __syncthreads();
  if (mass <= target && mass + mine > target) {
    int32_t pick = last;
    for (int v = work.first_of_run(); v < work.end_of_run(); ++v) {
      mass += weight(v);
      if (mass > target) {
        pick = v;
        break;
      }
    }
    atomicMin(&drawn, pick);
  }
  __syncthreads();
  return drawn;
}

// Where there is nothing to choose by.
__device__ int32_t smallest_unmasked(const Work& work, const SampleRow& row, const RowContext& context) {
  work.each([&](int v) { work.logits[v] = 0.0f; });
  __syncthreads();
  apply_masks(work, row, context);
  const uint64_t best = best_below(work, ~uint64_t{0});
  if (value_of_key(best) != -INFINITY) return id_of_key(best);
  return row.rules.num_allowed > 0 ? context.rule_words[0] : 0;
}

__device__ int32_t choose_token(const Work& work, const SampleRow& row, const RowContext& context) {
  apply_biases(work, row, context.rule_words);
  apply_masks(work, row, context);
  apply_penalties(work, row, context.history);
  const uint64_t best = best_below(work, ~uint64_t{0});
  const float max = value_of_key(best);
  if (max == -INFINITY) return smallest_unmasked(work, row, context);
  if (!(row.temperature > 0)) return id_of_key(best);
  const float inverse_temperature = fminf(1 / row.temperature, 3.402823466e38f);
  work.each([&](int v) { work.weights[v] = expf((work.logits[v] - max) * inverse_temperature); });
  __syncthreads();
  const double uniform = sampling_uniform(row.seed, static_cast<uint32_t>(row.position), row.choice);
  const bool ranked = (row.top_k > 0 && row.top_k < work.vocab) || row.top_p < 1.0f;
  const float min_p = fminf(fmaxf(row.min_p, 0.0f), 1.0f);
  if (ranked) return draw_ranked(work, row, max, inverse_temperature, uniform);
  return draw_in_id_order(work, min_p, uniform);
}

__global__ void __launch_bounds__(kThreads) sample_rows(SampleArgs args) {
  const int64_t i = blockIdx.x;
  const auto& row = *reinterpret_cast<const SampleRow*>(args.rows.row(i));
  int32_t* record = args.records.row(i);
  for (int w = static_cast<int>(threadIdx.x); w < static_cast<int>(kSampleRecordWords); w += kThreads)
    record[w] = 0;
  __syncthreads();
  if (row.slot < 0) return;
  const Work work{args.scratch + i * args.vocab,
                  args.scratch + (static_cast<int64_t>(gridDim.x) + i) * args.vocab,
                  args.vocab};
  work.each([&](int v) { work.logits[v] = raw_logit(args, i, v); });
  __syncthreads();
  float log_norm = 0;
  if (row.num_logprobs >= 0) log_norm = rank_raw_logits(work, row.num_logprobs, record);
  __syncthreads();
  const RowContext context{
      args.history.row(row.slot), args.rule_words + row.rules_begin, args.rule_words + row.more_banned_begin};
  const int32_t token = row.known_token >= 0 ? row.known_token : choose_token(work, row, context);
  if (threadIdx.x != 0) return;
  record[0] = token;
  if (row.num_logprobs >= 0) {
    record[1] = __float_as_int(token < args.vocab ? raw_logit(args, i, token) - log_norm : -INFINITY);
  }
}

}  // namespace

void sample_cuda(OpState& state, device::Stream& stream, const SampleParams& params) {
  const Tensor& logits = params.logits;
  CHECK(logits.dtype == DType::kF32 && logits.rank == 3 && logits.stride(2) == 1,
        "logits {}",
        logits.to_string());
  CHECK(params.vocab_size > 0 && params.vocab_size <= logits.dim(0) * logits.dim(2),
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
  const SampleArgs args{.logits = static_cast<const float*>(logits.data),
                        .shard_stride = logits.stride(0),
                        .row_stride = logits.stride(1),
                        .shard_width = static_cast<int>(logits.dim(2)),
                        .vocab = static_cast<int>(params.vocab_size),
                        .rows = rows_as<const uint8_t>(params.rows),
                        .history = rows_as<const int32_t>(params.history),
                        .rule_words = static_cast<const int32_t*>(params.rule_words.data),
                        .records = rows_as<int32_t>(params.records),
                        .scratch = cuda_state.sample_scratch()};
  sample_rows<<<static_cast<unsigned>(n), kThreads, 0, cuda.handle()>>>(args);
  cuda.check(cudaGetLastError(), "sample");
}

}  // namespace llm_dist::kernels
