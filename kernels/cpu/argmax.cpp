// Greedy sampling over vocabulary shards: each rank's best entry, then the best of those.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "kernels/cpu/cpu_op_state.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_views.h"
#include "kernels/cpu/sample_row.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::kernels {
namespace {

struct BestEntry {
  float value = -std::numeric_limits<float>::infinity();
  int32_t id = std::numeric_limits<int32_t>::max();  // none: loses every tie
};

bool better(const BestEntry& a, const BestEntry& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// The best entry of `count` logits whose first id is `first`, through a copy a chunk at a time.
BestEntry best_of_shard(const float* logits, int64_t first, int64_t count, const SampleRow& row) {
  alignas(64) float chunk[kVocabChunk];
  BestEntry best;
  for (int64_t begin = 0; begin < count; begin += kVocabChunk) {
    const int64_t n = std::min(kVocabChunk, count - begin);
    copy_clean(logits + begin, chunk, n);
    std::fill(chunk + n, chunk + kVocabChunk, -std::numeric_limits<float>::infinity());
    for (int32_t b = 0; b < row.num_banned; ++b) {
      const int64_t i = row.banned[b] - first - begin;
      if (i >= 0 && i < n) chunk[i] = -std::numeric_limits<float>::infinity();
    }
    float max = 0;
    scan_chunk_maxima(chunk, 1, &max);
    if (max > best.value) {
      const int64_t i = std::find(chunk, chunk + n, max) - chunk;
      best = {max, static_cast<int32_t>(first + begin + i)};
    }
  }
  return best;
}

// Where nothing is above −inf: the smallest id of the shard that the row allows.
int32_t first_allowed(int64_t first, int64_t count, const SampleRow& row) {
  const int32_t* banned_end = row.banned + row.num_banned;
  for (int64_t id = first; id < first + count; ++id) {
    if (std::find(row.banned, banned_end, static_cast<int32_t>(id)) == banned_end)
      return static_cast<int32_t>(id);
  }
  return std::numeric_limits<int32_t>::max();
}

}  // namespace

void argmax_shard_cpu(OpState& state, device::Stream& stream, const ArgmaxShardParams& params) {
  CHECK_EQ(params.logits.dtype, DType::kF32);
  CHECK_EQ(params.best.dtype, DType::kF32);
  const Rows logits = rows_of(params.logits);
  const Rows rows = rows_of(params.rows);
  const Rows best = rows_of(params.best);
  CHECK_EQ(rows.width, static_cast<int64_t>(sizeof(SampleRow)));
  CHECK_EQ(best.width, 2);
  CHECK(rows.count == logits.count && best.count == logits.count,
        "{} rows, {} bests for {} rows of logits",
        rows.count,
        best.count,
        logits.count);
  const int64_t first = params.vocab_begin;
  const int64_t count = std::clamp<int64_t>(params.vocab_size - first, 0, logits.width);
  const int threads = as_cpu(state).threads();
  device::as_cpu(stream).enqueue([=] {
    parallel_for(threads, logits.count, rows_per_thread(count), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        SampleRow row;
        std::memcpy(&row, rows.row<std::byte>(i), sizeof row);
        BestEntry entry{0.0f, 0};
        if (row.slot >= 0) {
          CHECK(row.num_banned >= 0 && row.num_banned <= kMaxBannedTokens, "{} banned", row.num_banned);
          CHECK(row.masks_little(), "row {} masks more than argmax knows of", i);
          entry = best_of_shard(logits.row<const float>(i), first, count, row);
          if (entry.id == BestEntry().id) entry.id = first_allowed(first, count, row);
        }
        best.row<float>(i)[0] = entry.value;
        best.row<float>(i)[1] = std::bit_cast<float>(entry.id);
      }
    });
  });
}

void argmax_merge_cpu(OpState&, device::Stream& stream, const ArgmaxMergeParams& params) {
  CHECK_EQ(params.best.dtype, DType::kF32);
  CHECK(params.best.rank == 3 && params.best.dim(2) == 2 && params.best.stride(2) == 1,
        "best {}",
        params.best.to_string());
  CHECK_EQ(params.records.dtype, DType::kI32);
  const Rows records = rows_of(params.records);
  CHECK_EQ(records.width, kSampleRecordWords);
  CHECK_EQ(records.count, params.best.dim(1));
  device::as_cpu(stream).enqueue([=, all = params.best] {
    for (int64_t i = 0; i < records.count; ++i) {
      BestEntry best;
      for (int64_t shard = 0; shard < all.dim(0); ++shard) {
        const float* entry = static_cast<const float*>(all.data) + shard * all.stride(0) + i * all.stride(1);
        // The id's bits are copied as an integer: as a float they may be a NaN or a denormal.
        BestEntry other{entry[0], 0};
        std::memcpy(&other.id, entry + 1, sizeof other.id);
        if (better(other, best)) best = other;
      }
      SampleRecord record;
      record.token = best.id == BestEntry().id ? 0 : best.id;
      std::memcpy(records.row<std::byte>(i), &record, sizeof record);
    }
  });
}

}  // namespace llm_dist::kernels
