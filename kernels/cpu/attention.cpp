// Paged attention with an online softmax (Dao et al. 2022). A task is one kv head of one sequence and up to
// 32 rows, a row being a query token's head of that group; each tile of 64 keys and values is read once for
// all of them. Tiles start at multiples of 64 positions whatever the batch, and the register blocks of rows
// do not mix rows, so that a query's result has the same bits in every batch and in every prompt chunk.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"  // NOLINT
#include "kernels/cpu/simd_targets.h"
// clang-format off: the rest comes after the list of targets
#include <hwy/foreach_target.h>
#include "kernels/cpu/simd-inl.h"
#include <hwy/contrib/math/math-inl.h>
// clang-format on

#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/kv_view.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_views.h"
#include "src/device/cpu/cpu_stream.h"

#ifndef LLM_DIST_KERNELS_CPU_ATTENTION_ONCE
#define LLM_DIST_KERNELS_CPU_ATTENTION_ONCE
namespace llm_dist::kernels {

inline constexpr int64_t kTileRows = 32;
inline constexpr int64_t kTileKeys = 64;
// From this many rows on, keys and values that are no floats are converted to float once rather than for each
// register block.
inline constexpr int64_t kStagedRows = 9;

struct AttentionWork {
  Rows q;
  Rows out;
  KvView k_cache;
  KvView v_cache;
  const int32_t* query_starts;
  const int32_t* context_lens;
  Rows block_tables;
  int64_t num_sequences;
  int64_t num_kv_heads;
  int64_t group;  // query heads a kv head
  float scale;
};

// Rows [row_begin, row_end) of one sequence's kv head; row r is head r % group of query r / group.
struct AttentionTask {
  int64_t sequence;
  int64_t kv_head;
  int64_t row_begin;
  int64_t row_end;
};

}  // namespace llm_dist::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace llm_dist::kernels::HWY_NAMESPACE {

// What fits the vector registers: rows · 4 accumulators, 4 loads and a broadcast.
inline constexpr int kBlockRows = kLanes >= 16 ? 4 : 2;

struct AttentionScratch {
  alignas(64) float q[kTileRows * kMaxHeadDim];
  alignas(64) float acc[kTileRows * kMaxHeadDim];
  alignas(64) float scores[kTileRows * kTileKeys];
  alignas(64) float keys[kTileKeys * kMaxHeadDim];
  alignas(64) float values[kTileKeys * kMaxHeadDim];
  float rescale[kTileRows];
  float row_max[kTileRows];
  float row_sum[kTileRows];
  const void* key_at[kTileKeys];
  const void* value_at[kTileKeys];
};

// {Σ a, Σ b, Σ c, Σ d}
HWY_INLINE hn::Vec<hn::Full128<float>> sums_of_four(FloatVec a, FloatVec b, FloatVec c, FloatVec d) {
  const FloatTag tag;
  const hn::Repartition<uint64_t, FloatTag> pairs;
  const FloatVec ab = hn::Add(hn::InterleaveLower(tag, a, b), hn::InterleaveUpper(tag, a, b));
  const FloatVec cd = hn::Add(hn::InterleaveLower(tag, c, d), hn::InterleaveUpper(tag, c, d));
  const auto ab_pairs = hn::BitCast(pairs, ab);
  const auto cd_pairs = hn::BitCast(pairs, cd);
  const FloatVec abcd = hn::Add(hn::BitCast(tag, hn::InterleaveLower(pairs, ab_pairs, cd_pairs)),
                                hn::BitCast(tag, hn::InterleaveUpper(pairs, ab_pairs, cd_pairs)));
  const hn::Half<FloatTag> half;
  const auto folded = hn::Add(hn::LowerHalf(half, abcd), hn::UpperHalf(half, abcd));
#if HWY_MAX_BYTES == 64
  const hn::Full128<float> quarter;
  return hn::Add(hn::LowerHalf(quarter, folded), hn::UpperHalf(quarter, folded));
#else
  return folded;
#endif
}

// scores[r, j] = q[r] · keys[j] for kRows rows and count keys, a multiple of 4. `width`: a multiple of
// kLanes.
template <int kRows, typename Kv>
void score_block(const float* q, int64_t width, const void* const* key_at, int64_t count, float* scores) {
  for (int64_t j = 0; j < count; j += 4) {
    FloatVec sums[kRows][4];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < 4; ++c) sums[r][c] = hn::Zero(FloatTag());
    }
    for (int64_t i = 0; i < width; i += kLanes) {
      FloatVec keys[4];
      for (int c = 0; c < 4; ++c) keys[c] = load_floats(static_cast<const Kv*>(key_at[j + c]) + i);
      for (int r = 0; r < kRows; ++r) {
        const FloatVec query = load_floats(q + r * width + i);
        for (int c = 0; c < 4; ++c) sums[r][c] = hn::MulAdd(query, keys[c], sums[r][c]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(sums_of_four(sums[r][0], sums[r][1], sums[r][2], sums[r][3]),
                 hn::Full128<float>(),
                 scores + r * kTileKeys + j);
    }
  }
}

// acc[r, i] = acc[r, i] · rescale[r] + Σ_j weights[r, j] · values[j, i] for kVecs vectors from column i on.
template <int kRows, int kVecs, typename Kv>
HWY_INLINE void accumulate_columns(const float* weights,
                                   const void* const* value_at,
                                   int64_t count,
                                   const float* rescale,
                                   float* acc,
                                   int64_t width,
                                   int64_t i) {
  const FloatTag tag;
  FloatVec sums[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    const FloatVec factor = hn::Set(tag, rescale[r]);
    for (int c = 0; c < kVecs; ++c) {
      sums[r][c] = hn::Mul(load_floats(acc + r * width + i + c * kLanes), factor);
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    const Kv* value = static_cast<const Kv*>(value_at[j]) + i;
    FloatVec values[kVecs];
    for (int c = 0; c < kVecs; ++c) values[c] = load_floats(value + c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const FloatVec weight = hn::Set(tag, weights[r * kTileKeys + j]);
      for (int c = 0; c < kVecs; ++c) sums[r][c] = hn::MulAdd(weight, values[c], sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) store_floats(sums[r][c], acc + r * width + i + c * kLanes);
  }
}

template <int kRows, typename Kv>
void accumulate_block(const float* weights,
                      const void* const* value_at,
                      int64_t count,
                      const float* rescale,
                      float* acc,
                      int64_t width) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    accumulate_columns<kRows, 4, Kv>(weights, value_at, count, rescale, acc, width, i);
  }
  for (; i < width; i += kLanes) {
    accumulate_columns<kRows, 1, Kv>(weights, value_at, count, rescale, acc, width, i);
  }
}

template <typename Kv>
void score_tile(AttentionScratch& s, int64_t rows, int64_t width, int64_t count) {
  int64_t r = 0;
  for (; r + kBlockRows <= rows; r += kBlockRows) {
    score_block<kBlockRows, Kv>(s.q + r * width, width, s.key_at, count, s.scores + r * kTileKeys);
  }
  if (kBlockRows == 4 && rows - r == 3) {
    score_block<3, Kv>(s.q + r * width, width, s.key_at, count, s.scores + r * kTileKeys);
  } else if (rows - r == 2) {
    score_block<2, Kv>(s.q + r * width, width, s.key_at, count, s.scores + r * kTileKeys);
  } else if (rows - r == 1) {
    score_block<1, Kv>(s.q + r * width, width, s.key_at, count, s.scores + r * kTileKeys);
  }
}

template <typename Kv>
void accumulate_tile(AttentionScratch& s, int64_t rows, int64_t width, int64_t count) {
  int64_t r = 0;
  const auto block = [&](auto run) {
    run(s.scores + r * kTileKeys, s.value_at, count, s.rescale + r, s.acc + r * width, width);
  };
  for (; r + kBlockRows <= rows; r += kBlockRows) block(&accumulate_block<kBlockRows, Kv>);
  if (kBlockRows == 4 && rows - r == 3) {
    block(&accumulate_block<3, Kv>);
  } else if (rows - r == 2) {
    block(&accumulate_block<2, Kv>);
  } else if (rows - r == 1) {
    block(&accumulate_block<1, Kv>);
  }
}

// Scores of one row become weights exp(score − max) and the row's running maximum and sum move on. Keys from
// `visible` on lie in the row's future.
void softmax_row(AttentionScratch& s, int64_t r, int64_t visible) {
  const FloatTag tag;
  float* scores = s.scores + r * kTileKeys;
  for (int64_t j = visible; j < kTileKeys; ++j) scores[j] = -std::numeric_limits<float>::infinity();
  FloatVec best = hn::Set(tag, s.row_max[r]);
  for (int64_t j = 0; j < kTileKeys; j += kLanes) best = hn::Max(best, hn::Load(tag, scores + j));
  best = hn::MaxOfLanes(tag, best);
  FloatVec sum = hn::Zero(tag);
  for (int64_t j = 0; j < kTileKeys; j += kLanes) {
    const FloatVec weight = hn::Exp(tag, hn::Sub(hn::Load(tag, scores + j), best));
    sum = hn::Add(sum, weight);
    hn::Store(weight, tag, scores + j);
  }
  s.rescale[r] = hn::GetLane(hn::Exp(tag, hn::Sub(hn::Set(tag, s.row_max[r]), best)));
  s.row_max[r] = hn::GetLane(best);
  s.row_sum[r] = s.row_sum[r] * s.rescale[r] + hn::GetLane(hn::SumOfLanes(tag, sum));
}

template <typename T>
void convert_padded(const T* from, float factor, float* to, int64_t n, int64_t width) {
  const FloatVec scale = hn::Set(FloatTag(), factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_floats(hn::Mul(load_floats(from + i), scale), to + i);
  if (i < width) store_floats(hn::Mul(load_floats_partly(from + i, n - i), scale), to + i);
}

void load_query(const AttentionWork& work, int64_t token, int64_t head, float* to, int64_t width) {
  const int64_t n = work.k_cache.head_dim;
  switch (work.q.dtype) {
    case DType::kF32: return convert_padded(work.q.row<float>(token) + head * n, work.scale, to, n, width);
    case DType::kBF16:
      return convert_padded(work.q.row<BFloat16>(token) + head * n, work.scale, to, n, width);
    default: return convert_padded(work.q.row<Float16>(token) + head * n, work.scale, to, n, width);
  }
}

template <typename T>
void scale_to(const float* from, float factor, T* to, int64_t n) {
  const FloatVec scale = hn::Set(FloatTag(), factor);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_floats(hn::Mul(load_floats(from + i), scale), to + i);
  if (i < n) store_floats_partly(hn::Mul(load_floats(from + i), scale), to + i, n - i);
}

void store_result(const AttentionWork& work, int64_t token, int64_t head, const float* from, float factor) {
  const int64_t n = work.k_cache.head_dim;
  switch (work.out.dtype) {
    case DType::kF32: return scale_to(from, factor, work.out.row<float>(token) + head * n, n);
    case DType::kBF16: return scale_to(from, factor, work.out.row<BFloat16>(token) + head * n, n);
    default: return scale_to(from, factor, work.out.row<Float16>(token) + head * n, n);
  }
}

// Where the keys and values of positions [begin, begin + count) stand; the list is padded to a multiple of 4.
template <typename Kv>
void locate_tile(
    const AttentionWork& work, const AttentionTask& task, int64_t begin, int64_t count, AttentionScratch& s) {
  const int32_t* table = work.block_tables.row<const int32_t>(task.sequence);
  const int64_t block_size = work.k_cache.block_size;
  for (int64_t j = 0; j < count;) {
    const int64_t block = table[(begin + j) / block_size];
    CHECK(block >= 0 && block < work.k_cache.num_blocks, "block {} of {}", block, work.k_cache.num_blocks);
    int64_t offset = (begin + j) % block_size;
    for (; offset < block_size && j < count; ++offset, ++j) {
      s.key_at[j] = work.k_cache.at<Kv>(block, task.kv_head, offset);
      s.value_at[j] = work.v_cache.at<Kv>(block, task.kv_head, offset);
    }
  }
  for (int64_t j = count; j % 4 != 0; ++j) s.key_at[j] = s.key_at[count - 1];
}

template <typename Kv>
void stage_tile(AttentionScratch& s, int64_t count, int64_t head_dim, int64_t width) {
  for (int64_t j = 0; j < count; ++j) {
    convert_padded(static_cast<const Kv*>(s.key_at[j]), 1.0f, s.keys + j * width, head_dim, width);
    convert_padded(static_cast<const Kv*>(s.value_at[j]), 1.0f, s.values + j * width, head_dim, width);
    s.key_at[j] = s.keys + j * width;
    s.value_at[j] = s.values + j * width;
  }
  for (int64_t j = count; j % 4 != 0; ++j) s.key_at[j] = s.key_at[count - 1];
}

void begin_rows(const AttentionWork& work, const AttentionTask& task, int64_t width, AttentionScratch& s) {
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const int64_t r = row - task.row_begin;
    const int64_t token = work.query_starts[task.sequence] + row / work.group;
    load_query(work, token, task.kv_head * work.group + row % work.group, s.q + r * width, width);
    for (int64_t i = 0; i < width; i += kLanes) store_floats(hn::Zero(FloatTag()), s.acc + r * width + i);
    s.row_max[r] = -std::numeric_limits<float>::infinity();
    s.row_sum[r] = 0;
  }
}

template <typename Kv>
void attend(const AttentionWork& work, const AttentionTask& task) {
  AttentionScratch s;
  const int64_t head_dim = work.k_cache.head_dim;
  const int64_t width = (head_dim + kLanes - 1) / kLanes * kLanes;
  const int64_t rows = task.row_end - task.row_begin;
  const int64_t queries = work.query_starts[task.sequence + 1] - work.query_starts[task.sequence];
  const int64_t before = work.context_lens[task.sequence] - queries;  // tokens before the first query
  const int64_t last_visible = before + (task.row_end - 1) / work.group + 1;
  const bool staged = width != head_dim || (sizeof(Kv) < 4 && rows >= kStagedRows);
  begin_rows(work, task, width, s);
  for (int64_t begin = 0; begin < last_visible; begin += kTileKeys) {
    const int64_t count = std::min(kTileKeys, last_visible - begin);
    const int64_t padded = (count + 3) / 4 * 4;
    locate_tile<Kv>(work, task, begin, count, s);
    if (staged) {
      stage_tile<Kv>(s, count, head_dim, width);
      score_tile<float>(s, rows, width, padded);
    } else {
      score_tile<Kv>(s, rows, width, padded);
    }
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t visible = before + (task.row_begin + r) / work.group + 1 - begin;
      softmax_row(s, r, std::clamp<int64_t>(visible, 0, count));
    }
    if (staged) {
      accumulate_tile<float>(s, rows, width, count);
    } else {
      accumulate_tile<Kv>(s, rows, width, count);
    }
  }
  for (int64_t row = task.row_begin; row < task.row_end; ++row) {
    const int64_t r = row - task.row_begin;
    const int64_t token = work.query_starts[task.sequence] + row / work.group;
    store_result(
        work, token, task.kv_head * work.group + row % work.group, s.acc + r * width, 1 / s.row_sum[r]);
  }
}

void attend_any(const AttentionWork& work, const AttentionTask& task) {
  switch (work.k_cache.dtype) {
    case DType::kF32: return attend<float>(work, task);
    case DType::kBF16: return attend<BFloat16>(work, task);
    case DType::kF8E4M3: return attend<Float8E4M3>(work, task);
    default: return attend<Float16>(work, task);
  }
}

}  // namespace llm_dist::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace llm_dist::kernels {
namespace {

HWY_EXPORT(attend_any);

int64_t row_tiles(const AttentionWork& work, int64_t sequence) {
  const int64_t queries = work.query_starts[sequence + 1] - work.query_starts[sequence];
  return (queries * work.group + kTileRows - 1) / kTileRows;
}

// Walks the batch's tasks in order; the sequences' query counts are known on the stream only.
class TaskCursor {
 public:
  explicit TaskCursor(const AttentionWork& work) : work_(work) {}

  // Task number `index` of the batch; indices asked for never fall. False beyond the last one.
  bool seek(int64_t index, AttentionTask& task) {
    for (; sequence_ < work_.num_sequences; ++sequence_) {
      const int64_t tasks = row_tiles(work_, sequence_) * work_.num_kv_heads;
      if (index < first_ + tasks) {
        fill(index - first_, task);
        return true;
      }
      first_ += tasks;
    }
    return false;
  }

 private:
  // Longest first: the last tile of a prompt chunk sees the most keys.
  void fill(int64_t local, AttentionTask& task) const {
    const int64_t tile = row_tiles(work_, sequence_) - 1 - local / work_.num_kv_heads;
    const int64_t queries = work_.query_starts[sequence_ + 1] - work_.query_starts[sequence_];
    task = {.sequence = sequence_,
            .kv_head = local % work_.num_kv_heads,
            .row_begin = tile * kTileRows,
            .row_end = std::min((tile + 1) * kTileRows, queries * work_.group)};
  }

  const AttentionWork& work_;
  int64_t sequence_ = 0;
  int64_t first_ = 0;  // index of sequence_'s first task
};

// Multiply-adds of the batch, and the check of what only the stream knows.
int64_t checked_work(const AttentionWork& work) {
  int64_t total = 0;
  for (int64_t s = 0; s < work.num_sequences; ++s) {
    const int64_t queries = work.query_starts[s + 1] - work.query_starts[s];
    CHECK_GE(queries, 0);
    if (queries == 0) continue;
    CHECK_LE(work.query_starts[s + 1], work.q.count);
    CHECK(work.context_lens[s] >= queries &&
              work.context_lens[s] <= work.block_tables.width * work.k_cache.block_size,
          "sequence {}: {} queries, context {}, room for {} blocks",
          s,
          queries,
          work.context_lens[s],
          work.block_tables.width);
    total += queries * work.context_lens[s];
  }
  return total * work.num_kv_heads * work.group * work.k_cache.head_dim;
}

void attend_batch(const AttentionWork& work, int threads) {
  constexpr int64_t kSerialWork = 1 << 17;
  const int team = checked_work(work) < kSerialWork ? 1 : threads;
  std::atomic<int64_t> next{0};
  parallel_for(team, team, 1, [&](int64_t, int64_t, int) {
    TaskCursor cursor(work);
    AttentionTask task{};
    while (cursor.seek(next.fetch_add(1, std::memory_order_relaxed), task)) {
      HWY_DYNAMIC_DISPATCH(attend_any)(work, task);
    }
  });
}

void check_shapes(const AttentionWork& work, const AttentionParams& params) {
  CHECK(params.num_kv_heads > 0 && params.num_heads % params.num_kv_heads == 0,
        "{} heads over {} kv heads",
        params.num_heads,
        params.num_kv_heads);
  CHECK_EQ(work.k_cache.num_kv_heads, params.num_kv_heads);
  CHECK(params.v_cache.dtype == params.k_cache.dtype && params.v_cache.shape == params.k_cache.shape,
        "K {} and V {}",
        params.k_cache.to_string(),
        params.v_cache.to_string());
  const int64_t head_dim = work.k_cache.head_dim;
  CHECK(takes_head_dim(head_dim), "head_dim {}", head_dim);
  CHECK_EQ(work.q.width, params.num_heads * head_dim);
  CHECK_EQ(work.out.width, work.q.width);
  CHECK_EQ(work.out.count, work.q.count);
  CHECK_EQ(work.out.dtype, work.q.dtype);
  CHECK_EQ(params.block_tables.dtype, DType::kI32);
}

}  // namespace

void attention_plan_cpu(OpState&, device::Stream&, const AttentionPlanParams& params) {
  CHECK_LE(params.head_dim, kMaxHeadDim);  // nothing to prepare: tasks are dealt out on the stream's thread
}

void attention_cpu(OpState& state, device::Stream& stream, const AttentionParams& params) {
  const int64_t num_sequences = params.context_lens.dim(0);
  const AttentionWork work{.q = activation_rows(params.q),
                           .out = activation_rows(params.out),
                           .k_cache = kv_view(params.k_cache),
                           .v_cache = kv_view(params.v_cache),
                           .query_starts = i32_vector(params.query_starts, num_sequences + 1),
                           .context_lens = i32_vector(params.context_lens, num_sequences),
                           .block_tables = rows_of(params.block_tables),
                           .num_sequences = num_sequences,
                           .num_kv_heads = params.num_kv_heads,
                           .group = params.num_heads / std::max(1, params.num_kv_heads),
                           .scale = params.scale};
  check_shapes(work, params);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=] { attend_batch(work, threads); });
}

}  // namespace llm_dist::kernels
#endif
