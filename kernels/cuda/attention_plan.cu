// Splits of decoding sequences and tiles of prompts, one block for the whole step. A decoding sequence's
// context is cut into shares of equal length, as many as fill the device ("Flash-Decoding", Dao et al. 2023).
// Many sequences, and tiles of prompts, are sorted, the longest first, so that however they are dealt out the
// last to end are short.
#include <algorithm>
#include <climits>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/paged_attention.h"

namespace llm_dist::kernels {
namespace {

constexpr int kPlanThreads = 256;
constexpr int64_t kProcessors = 132;  // of an H100 or H200
constexpr int64_t kTargetBlocks = kDecodeResidents * kProcessors;
constexpr int kShareGranule = kDecodeWarps * kDecodeKeys;  // keys
constexpr int kMaxDecodeRows = 16;
constexpr int kMaxHeadDim = 128;
constexpr int64_t kAlignment = 256;
constexpr int64_t kMostGridRows = 65535;
constexpr int kLeastStep = 128;  // keys: lengths that differ by fewer may be in any order

int64_t aligned(int64_t bytes) { return ceil_div(bytes, kAlignment) * kAlignment; }

// Shares of all sequences together, if each has at least one.
int64_t most_decode_items(int64_t num_sequences, int64_t num_kv_heads) {
  return ceil_div(kTargetBlocks, num_kv_heads) + num_sequences;
}
// Only sequences of two shares or more leave partial results: no more than twice as many as there are blocks.
constexpr int64_t kMaxPartials = 4 * kTargetBlocks;  // (slot, kv head) pairs
int64_t most_partials(int64_t num_kv_heads) {
  return 2 * ceil_div(kTargetBlocks, num_kv_heads) * num_kv_heads;
}
// From so many on sequences are many: not cut where they are about equally long, and in order of their
// lengths.
int64_t many_decodes(int64_t num_kv_heads) { return ceil_div(kTargetBlocks / 2, num_kv_heads); }
// Blocks that a processor is to have at a time. Of as many as nearly fill one round of two each, a round of
// three would crowd some processors and leave others nearly empty. Of a few more than one round of three
// takes, the second round would be nearly empty; two rounds of two each are full.
int residents_of(int64_t blocks) {
  constexpr int kFewer = kDecodeResidents - 1;
  constexpr int64_t kRound = kFewer * kProcessors;
  const bool one_round = 10 * blocks > 9 * kRound && blocks <= kRound;
  const bool two_rounds = blocks > kTargetBlocks && blocks <= 2 * kRound;
  return one_round || two_rounds ? kFewer : kDecodeResidents;
}
int64_t most_prompt_items(int64_t num_tokens, int64_t num_sequences, int64_t group, int64_t rows) {
  return ceil_div(num_tokens * group, rows) + std::min(num_sequences, num_tokens);
}

// Whose keys and values of the longest context L2 holds, with room for what passes through.
int heads_in_cache(const AttentionPlanParams& params) {
  constexpr int64_t kCacheBytes = int64_t{16} << 20;
  const int64_t bytes_of_head = 2 * params.max_context_len * params.head_dim * dtype_bytes(params.kv_dtype);
  return static_cast<int>(
      std::clamp<int64_t>(kCacheBytes / std::max<int64_t>(1, bytes_of_head), 1, params.num_kv_heads));
}

// What prompts and decodes of a step are to attention, by the host's bounds of contexts.
struct StepWork {
  int64_t decodes = 0;       // sequences
  int64_t decode_keys = 0;   // of all of them
  int64_t prompt_items = 0;  // exactly
  int64_t prompt_tiles = 0;  // of kHopperPromptKeys keys that those see
};
StepWork work_of_step(const AttentionPlanParams& params, const AttentionPlan& plan, int64_t group) {
  StepWork work;
  for (int64_t s = 0; s < params.num_sequences; ++s) {
    const int64_t queries = params.query_starts_host[s + 1] - params.query_starts_host[s];
    const int64_t context = params.context_lens_host[s];
    const int64_t items = ceil_div(queries * group, plan.prompt_rows);
    if (queries > 0 && queries * group <= plan.decode_rows) {
      ++work.decodes;
      work.decode_keys += context;
    } else {
      work.prompt_items += items;
      // On the average a row sees half of its own sequence's queries.
      work.prompt_tiles += items * ceil_div(context - queries / 2, kHopperPromptKeys);
    }
  }
  return work;
}
// A tile, with its part of what an item costs, takes HopperPrompts about as long as one processor's share of
// the bandwidth takes for so many keys of a decode; and where others leave the memory alone, a processor gets
// up to half as much again.
int blocks_beside_decodes(const StepWork& work, int processors) {
  constexpr double kDecodeKeysOfATile = 220;
  constexpr double kMoreBandwidth = 1.5;
  if (processors == 0) return 0;
  const double prompts = kMoreBandwidth * kDecodeKeysOfATile * static_cast<double>(work.prompt_tiles);
  const double share = prompts / std::max(1.0, prompts + static_cast<double>(work.decode_keys));
  return std::clamp(static_cast<int>(processors * share + 0.5), 1, processors);
}

// Where each part lies. The counters stand first: they are never anything else, since they have to be zero.
struct Parts {
  int64_t decode, order, prompt, partial, bytes;
};
Parts parts_of(const OpStateOptions& options) {
  Parts parts{};
  parts.decode = aligned(kMaxPartials * int64_t{sizeof(int32_t)});
  // One kv head is the worst case for shares, the widest group for tiles.
  parts.order =
      parts.decode + aligned(most_decode_items(options.max_sequences, 1) * int64_t{sizeof(DecodeItem)});
  parts.prompt = parts.order + aligned(options.max_sequences * int64_t{sizeof(int32_t)});
  parts.partial =
      parts.prompt +
      aligned(most_prompt_items(options.max_tokens, options.max_sequences, kMaxDecodeRows, kPromptRows) *
              int64_t{sizeof(PromptItem)});
  parts.bytes =
      parts.partial + kMaxPartials * kMaxDecodeRows * partial_floats(kMaxHeadDim) * int64_t{sizeof(float)};
  return parts;
}

struct PlanArgs {
  const int32_t* query_starts;
  const int32_t* context_lens;
  int num_sequences;
  int num_kv_heads;
  int group;
  int decode_rows;
  int prompt_rows;
  int many;    // many_decodes()
  int places;  // that processors have for blocks at a time
};

struct SequenceWork {
  int keys = 0;   // of a decoding sequence
  int items = 0;  // of a prompt
};
__device__ SequenceWork work_of(const PlanArgs& args, int sequence) {
  if (sequence >= args.num_sequences) return {};
  const int queries = args.query_starts[sequence + 1] - args.query_starts[sequence];
  const int rows = queries * args.group;
  if (rows == 0) return {};
  if (rows <= args.decode_rows) return {.keys = args.context_lens[sequence]};
  return {.items = (rows + args.prompt_rows - 1) / args.prompt_rows};
}
__device__ PromptItem prompt_item(const PlanArgs& args, int sequence, int index) {
  return {.sequence = sequence,
          .first_row = index * args.prompt_rows,
          .query_start = args.query_starts[sequence],
          .num_queries = args.query_starts[sequence + 1] - args.query_starts[sequence],
          .context = args.context_lens[sequence]};
}
// run(item) for each prompt item of a step; all threads call it.
template <typename Run>
__device__ void each_prompt_item(const PlanArgs& args, Run&& run) {
  constexpr int kWarps = kPlanThreads / kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int s = warp; s < args.num_sequences; s += kWarps) {
    const int items = work_of(args, s).items;
    for (int i = lane; i < items; i += kWarpSize) run(prompt_item(args, s, i));
  }
}

// Calls put(place, item) for each item, those with the most keys first, by counting those with about as many:
// each(run) calls run(item, keys) for all of them, whenever it is called. All threads call it.
template <typename Each, typename Put>
__device__ void longest_first(Each&& each, Put&& put) {
  constexpr int kEach = 4;  // lengths of a thread
  constexpr int kLengths = kEach * kPlanThreads;
  __shared__ int places[kLengths];  // of items of a length: how many there are, then where the next one goes
  const int thread = static_cast<int>(threadIdx.x);
  int most = 0;
  each([&](const auto&, int keys) { most = max(most, keys); });
  most = block_reduce(most, MaxOp());
  const int step = max(kLeastStep, most / kLengths + 1);
  auto place_of = [&](int keys) { return places + (most - keys) / step; };
  for (int i = thread; i < kLengths; i += kPlanThreads) places[i] = 0;
  __syncthreads();
  each([&](const auto&, int keys) { atomicAdd(place_of(keys), 1); });
  __syncthreads();
  int* of_thread = places + kEach * thread;
  int sum = 0;
  for (int i = 0; i < kEach; ++i) sum += of_thread[i];
  int first = block_exclusive_sum(sum);
  for (int i = 0; i < kEach; ++i) {
    const int count = of_thread[i];
    of_thread[i] = first;
    first += count;
  }
  __syncthreads();
  each([&](const auto& item, int keys) { put(atomicAdd(place_of(keys), 1), item); });
  __syncthreads();
}

__device__ void sort_prompts(const PlanArgs& args, const AttentionPlan& plan) {
  auto each = [&](auto&& run) {
    each_prompt_item(args,
                     [&](const PromptItem& item) { run(item, keys_of(item, args.group, args.prompt_rows)); });
  };
  longest_first(each, [&](int place, const PromptItem& item) { plan.prompt[place] = item; });
}

__device__ void sort_sequences(const PlanArgs& args, const AttentionPlan& plan) {
  auto each = [&](auto&& run) {
    for (int s = static_cast<int>(threadIdx.x); s < args.num_sequences; s += kPlanThreads)
      run(s, work_of(args, s).keys);
  };
  longest_first(each, [&](int place, int sequence) { plan.order[place] = sequence; });
}

// The shortest share, in granules, from `least` on with which there are no more shares than `blocks`, so that
// none waits for a place; `least` where that would be too long. Each thread tries one. All threads call it.
__device__ int granules_in_one_round(const PlanArgs& args, int least, int blocks) {
  __shared__ int keys[kPlanThreads];
  const int thread = static_cast<int>(threadIdx.x);
  keys[thread] = work_of(args, thread).keys;
  __syncthreads();
  const int granules = least + thread;
  const bool tries = 2 * granules <= 3 * least;
  const int share = granules * kShareGranule;
  int shares = tries ? 0 : INT_MAX;
  for (int s = 0; tries && s < args.num_sequences; ++s) shares += (keys[s] + share - 1) / share;
  const int found = block_reduce(shares <= blocks ? granules : INT_MAX, MinOp());
  return found == INT_MAX ? least : found;
}

__global__ void __launch_bounds__(kPlanThreads) plan_attention(PlanArgs args, AttentionPlan plan) {
  const int thread = static_cast<int>(threadIdx.x);
  int64_t keys = 0;
  int longest = 0;
  int decodes = 0;
  for (int s = thread; s < args.num_sequences; s += kPlanThreads) {
    const int of_this = work_of(args, s).keys;
    keys += of_this;
    longest = max(longest, of_this);
    decodes += of_this > 0 ? 1 : 0;
  }
  const int64_t all_keys = block_reduce(keys, AddOp());
  longest = block_reduce(longest, MaxOp());
  decodes = block_reduce(decodes, AddOp());
  const int blocks = max(1, args.places / args.num_kv_heads);
  const int wanted = static_cast<int>((all_keys + blocks - 1) / blocks);
  int granules = max(1, (wanted + kShareGranule - 1) / kShareGranule);
  if (granules > 1 && decodes <= blocks && args.num_sequences <= kPlanThreads)
    granules = granules_in_one_round(args, granules, blocks);
  int share = granules * kShareGranule;
  // As they are, many sequences of about one length keep all busy for about one time.
  if (decodes >= args.many && 4 * static_cast<int64_t>(longest) * decodes <= 5 * all_keys)
    share = max(share, longest);

  // The blocks of few sequences begin together.
  const bool sorted = args.num_sequences >= args.many;
  if (sorted) sort_sequences(args, plan);
  int item_base = 0;
  int slot_base = 0;
  for (int first = 0; first < args.num_sequences; first += kPlanThreads) {
    const int s = sorted && first + thread < args.num_sequences ? plan.order[first + thread] : first + thread;
    const SequenceWork work = work_of(args, s);
    const int splits = (work.keys + share - 1) / share;
    const int slots = splits > 1 ? splits : 0;
    const int item = item_base + block_exclusive_sum(splits);
    const int slot = slot_base + block_exclusive_sum(slots);
    for (int i = 0; i < splits; ++i) {
      plan.decode[item + i] = {.sequence = s,
                               .begin = i * share,
                               .end = min(work.keys, (i + 1) * share),
                               .split = i,
                               .num_splits = splits,
                               .first_slot = slot,
                               .query_start = args.query_starts[s],
                               .num_queries = args.query_starts[s + 1] - args.query_starts[s],
                               .context = work.keys};
    }
    item_base += block_reduce(splits, AddOp());
    slot_base += block_reduce(slots, AddOp());
  }
  for (int64_t i = item_base + thread; i < plan.num_decode; i += kPlanThreads) plan.decode[i].sequence = -1;
  if (plan.num_prompt > 0) sort_prompts(args, plan);
}

}  // namespace

int64_t attention_plan_bytes(const OpStateOptions& options) { return parts_of(options).bytes; }

AttentionPlan lay_out_plan(const AttentionPlanParams& params,
                           std::byte* memory,
                           const OpStateOptions& options,
                           int hopper_processors) {
  AttentionPlan plan{.num_sequences = params.num_sequences,
                     .num_tokens = params.num_tokens,
                     .num_kv_heads = params.num_kv_heads};
  const int64_t group = params.num_heads / std::max(1, params.num_kv_heads);
  const int decode_rows = group <= 8 ? 8 : kMaxDecodeRows;
  const bool f8 = params.kv_dtype == DType::kF8E4M3;
  const bool plain =
      options.attention == AttentionKernels::kPortable && params.max_query_len * group <= decode_rows;
  plan.tensor_cores = !plain && (f8 || params.kv_dtype == params.dtype) &&
                      (params.dtype == DType::kBF16 || params.dtype == DType::kF16) &&
                      (params.head_dim == 64 || params.head_dim == 128) && params.block_size % 16 == 0 &&
                      group >= 1 && group <= kMaxDecodeRows && params.num_sequences > 0;
  if (!plan.tensor_cores) return plan;
  CHECK(params.num_sequences <= options.max_sequences && params.num_tokens <= options.max_tokens,
        "{} sequences of {} tokens, planned for {} and {}",
        params.num_sequences,
        params.num_tokens,
        options.max_sequences,
        options.max_tokens);
  plan.decode_rows = decode_rows;
  plan.prompt_heads = heads_in_cache(params);
  plan.prompt_rows = hopper_processors > 0 ? kHopperPromptRows : kPromptRows;
  plan.decode_residents = residents_of(params.num_sequences * params.num_kv_heads);
  plan.num_decode = most_decode_items(params.num_sequences, params.num_kv_heads);
  if (params.max_query_len * group > plan.decode_rows) {
    const StepWork work = work_of_step(params, plan, group);
    plan.num_prompt = work.prompt_items;
    CHECK_LE(plan.num_prompt,
             most_prompt_items(params.num_tokens, params.num_sequences, group, plan.prompt_rows));
    plan.prompt_blocks =
        starts_kernels_early() ? blocks_beside_decodes(work, hopper_processors) : hopper_processors;
    if (work.decodes == 0 && work.prompt_items > 0) plan.num_decode = 0;
  }
  CHECK_LE(most_partials(params.num_kv_heads), kMaxPartials);
  CHECK_LE(plan.num_decode, kMostGridRows);
  const Parts parts = parts_of(options);
  plan.finished = reinterpret_cast<int32_t*>(memory);
  plan.decode = reinterpret_cast<DecodeItem*>(memory + parts.decode);
  plan.order = reinterpret_cast<int32_t*>(memory + parts.order);
  plan.prompt = reinterpret_cast<PromptItem*>(memory + parts.prompt);
  plan.partial = reinterpret_cast<float*>(memory + parts.partial);
  return plan;
}

cudaError_t launch_attention_plan(const AttentionPlan& plan,
                                  const AttentionPlanParams& params,
                                  cudaStream_t stream) {
  const PlanArgs args{.query_starts = i32_vector(params.query_starts, params.num_sequences + 1),
                      .context_lens = i32_vector(params.context_lens, params.num_sequences),
                      .num_sequences = static_cast<int>(params.num_sequences),
                      .num_kv_heads = params.num_kv_heads,
                      .group = params.num_heads / params.num_kv_heads,
                      .decode_rows = plan.decode_rows,
                      .prompt_rows = plan.prompt_rows,
                      .many = static_cast<int>(many_decodes(params.num_kv_heads)),
                      .places = plan.decode_residents * static_cast<int>(kProcessors)};
  plan_attention<<<1, kPlanThreads, 0, stream>>>(args, plan);
  return cudaGetLastError();
}

}  // namespace llm_dist::kernels
