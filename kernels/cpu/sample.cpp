// Sampling, one row at a time: the row's shards are laid out as one vocabulary in the thread's scratch, so
// that nothing after that knows about shards or other rows.
#include <algorithm>
#include <cmath>
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

struct SampleWork {
  Tensor logits;  // f32 [num_shards, n, vocab_shard]
  int64_t vocab_size;
  Rows rows;
  Rows history;
  std::span<const int32_t> rule_words;
  Rows records;
};

std::span<const int32_t> words_in(const Tensor& words) {
  if (words.data == nullptr) return {};
  CHECK(words.dtype == DType::kI32 && words.is_contiguous(), "rule words {}", words.to_string());
  return {static_cast<const int32_t*>(words.data), static_cast<size_t>(words.numel())};
}

const float* shard_row(const SampleWork& work, int64_t shard, int64_t row) {
  return static_cast<const float*>(work.logits.data) + shard * work.logits.stride(0) +
         row * work.logits.stride(1);
}

void load_logits(const SampleWork& work, int64_t row, SampleScratch& s) {
  const int64_t width = work.logits.dim(2);
  int64_t filled = 0;
  for (int64_t shard = 0; filled < s.vocab_size; ++shard) {
    const int64_t count = std::min(width, s.vocab_size - filled);
    copy_clean(shard_row(work, shard, row), s.logits + filled, count);
    filled += count;
  }
  std::fill(s.logits + filled, s.logits + s.chunks * kVocabChunk, -std::numeric_limits<float>::infinity());
}

// The model's own distribution: log p = logit − log_norm.
struct LogSoftmax {
  double log_norm = 0;

  float of(float logit) const {
    if (std::isinf(logit)) return logit;
    return static_cast<float>(static_cast<double>(logit) - log_norm);
  }
};

// Of the logits as the model gave them; fills the record's top ids too.
LogSoftmax rank_raw_logits(SampleScratch& s, int32_t num_top, SampleRecord& record) {
  const float max = scan_chunk_maxima(s.logits, s.chunks, s.chunk_max);
  LogSoftmax softmax;
  if (!std::isinf(max)) {
    softmax.log_norm =
        static_cast<double>(max) + std::log(sum_weights(s.logits, s.chunks, {max, 1.0f, 0.0f}));
  }
  if (num_top > 0) record.num_top = static_cast<int32_t>(select_best(s, num_top));
  for (int32_t i = 0; i < record.num_top; ++i) {
    record.top_ids[i] = id_of(s.keys[i]);
    record.top_logprobs[i] = softmax.of(logit_of(s.keys[i]));
  }
  return softmax;
}

float raw_logit(const SampleWork& work, int64_t row, int32_t token) {
  if (token >= work.vocab_size) return -std::numeric_limits<float>::infinity();
  const int64_t width = work.logits.dim(2);
  float logit = 0;
  copy_clean(shard_row(work, token / width, row) + token % width, &logit, 1);
  return logit;
}

const int32_t* history_of(const SampleWork& work, const SampleRow& row) {
  CHECK_LT(row.slot, work.history.count);
  CHECK(row.position >= 0 && row.position <= work.history.width,
        "position {} of {}",
        row.position,
        work.history.width);
  return work.history.row<const int32_t>(row.slot);
}

const int32_t* words_of(const SampleWork& work, int32_t begin, int32_t count) {
  CHECK(begin >= 0 && count >= 0 &&
            size_t{static_cast<uint32_t>(begin)} + static_cast<uint32_t>(count) <= work.rule_words.size(),
        "{} rule words from {} of {}",
        count,
        begin,
        work.rule_words.size());
  return work.rule_words.data() + begin;
}

RowContext context_of(const SampleWork& work, const SampleRow& row) {
  return {.history = history_of(work, row),
          .rule_words = words_of(work, row.rules_begin, row.rules.num_words),
          .more_banned = words_of(work, row.more_banned_begin, row.num_more_banned)};
}

SampleRecord sample_row(const SampleWork& work,
                        int64_t i,
                        const SampleRow& row,
                        std::span<std::byte> memory) {
  SampleRecord record;
  CHECK(row.num_banned >= 0 && row.num_banned <= kMaxBannedTokens, "{} banned tokens", row.num_banned);
  CHECK_LE(row.num_logprobs, kMaxTopLogprobs);
  SampleScratch scratch(memory, work.vocab_size);
  load_logits(work, i, scratch);
  LogSoftmax softmax;
  if (row.num_logprobs >= 0) softmax = rank_raw_logits(scratch, row.num_logprobs, record);
  record.token = row.known_token >= 0 ? row.known_token : choose_token(scratch, row, context_of(work, row));
  if (row.num_logprobs >= 0) record.logprob = softmax.of(raw_logit(work, i, record.token));
  return record;
}

}  // namespace

void sample_cpu(OpState& state, device::Stream& stream, const SampleParams& params) {
  CHECK_EQ(params.logits.dtype, DType::kF32);
  CHECK(params.logits.rank == 3 && params.logits.stride(2) == 1, "logits {}", params.logits.to_string());
  CHECK(params.vocab_size > 0 && params.vocab_size <= params.logits.dim(0) * params.logits.dim(2),
        "vocabulary of {} in logits {}",
        params.vocab_size,
        params.logits.to_string());
  CHECK_EQ(params.history.dtype, DType::kI32);
  CHECK_EQ(params.records.dtype, DType::kI32);
  const SampleWork work{.logits = params.logits,
                        .vocab_size = params.vocab_size,
                        .rows = rows_of(params.rows),
                        .history = rows_of(params.history),
                        .rule_words = words_in(params.rule_words),
                        .records = rows_of(params.records)};
  const int64_t n = work.rows.count;
  CHECK_EQ(work.rows.width, static_cast<int64_t>(sizeof(SampleRow)));
  CHECK_EQ(work.records.width, kSampleRecordWords);
  CHECK(params.logits.dim(1) == n && work.records.count == n,
        "{} rows, logits {}, {} records",
        n,
        params.logits.to_string(),
        work.records.count);
  CpuOpState* cpu = &as_cpu(state);
  device::as_cpu(stream).enqueue([=] {
    parallel_for(
        cpu->threads(), n, rows_per_thread(work.vocab_size), [&](int64_t begin, int64_t end, int thread) {
          for (int64_t i = begin; i < end; ++i) {
            SampleRow row;
            std::memcpy(&row, work.rows.row<std::byte>(i), sizeof row);
            SampleRecord record;
            if (row.slot >= 0) record = sample_row(work, i, row, cpu->thread_scratch(thread));
            std::memcpy(work.records.row<std::byte>(i), &record, sizeof record);
          }
        });
  });
}

}  // namespace llm_dist::kernels
