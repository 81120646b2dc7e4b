// What the sampling tests of the CPU share: rows of logits in, records out.
#pragma once

#include <cstring>
#include <vector>

#include "tests/kernels/op_fixture.h"

namespace llm_dist::kernels {

inline const SampleRow kGreedy{.slot = 0, .temperature = 0};

class CpuSampleTest : public OpTest {
 protected:
  // Samples every row of logits [n][vocab], cut into `shards`; all rows share `history`.
  std::vector<SampleRecord> sample(const std::vector<std::vector<double>>& logits,
                                   const std::vector<SampleRow>& rows,
                                   int64_t shards = 1,
                                   const std::vector<double>& history = std::vector<double>(64),
                                   const std::vector<int32_t>& rule_words = {}) {
    const auto n = static_cast<int64_t>(logits.size());
    const auto vocab = static_cast<int64_t>(logits[0].size());
    const int64_t width = (vocab + shards - 1) / shards + (shards > 1 ? 1 : 0);
    // Padding is what must never be drawn.
    TestTensor sharded(
        DType::kF32, {shards, n, width}, std::vector<double>(static_cast<size_t>(shards * n * width), 1e30));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t v = 0; v < vocab; ++v) {
        sharded.set((v / width * n + i) * width + v % width,
                    logits[static_cast<size_t>(i)][static_cast<size_t>(v)]);
      }
    }
    const TestTensor row_bytes = bytes_of(rows);
    const TestTensor history_tensor(DType::kI32, {1, static_cast<int64_t>(history.size())}, history);
    const TestTensor records(DType::kI32,
                             {n, kSampleRecordWords},
                             std::vector<double>(static_cast<size_t>(n * kSampleRecordWords), 77));
    run(ops_.sample,
        {.logits = sharded,
         .vocab_size = vocab,
         .rows = row_bytes,
         .history = history_tensor,
         .rule_words = words_of(rule_words),
         .records = records});
    return records_of(records);
  }
  SampleRecord sample_one(const std::vector<double>& logits,
                          const SampleRow& row,
                          const std::vector<double>& history = std::vector<double>(64)) {
    return sample({logits}, {row}, 1, history)[0];
  }

  // The tokens that `draws` positions of one row give, counted.
  std::vector<int> count_tokens(const std::vector<double>& logits, SampleRow row, int draws) {
    std::vector<SampleRow> rows;
    for (int i = 0; i < draws; ++i) {
      row.seed = 1000 + static_cast<uint64_t>(i);
      rows.push_back(row);
    }
    std::vector<int> counts(logits.size());
    const std::vector<std::vector<double>> all(static_cast<size_t>(draws), logits);
    for (const SampleRecord& record : sample(all, rows)) ++counts[static_cast<size_t>(record.token)];
    return counts;
  }

  int32_t greedy_over_shards(const std::vector<double>& logits, const SampleRow& row, int64_t width) {
    const auto vocab = static_cast<int64_t>(logits.size());
    const int64_t shards = (vocab + width - 1) / width + 1;  // the last one has padding only
    const TestTensor rows = bytes_of({row});
    const TestTensor best(DType::kF32, {shards, 1, 2});
    for (int64_t s = 0; s < shards; ++s) {
      TestTensor shard(DType::kF32, {1, width}, std::vector<double>(static_cast<size_t>(width), 1e30));
      for (int64_t v = 0; v < width && s * width + v < vocab; ++v)
        shard.set(v, logits[static_cast<size_t>(s * width + v)]);
      run(ops_.argmax_shard,
          {.logits = shard,
           .vocab_begin = s * width,
           .vocab_size = vocab,
           .rows = rows,
           .best = best.view().rows(s, 1).reshaped({1, 2})});
    }
    const TestTensor records(DType::kI32, {1, kSampleRecordWords});
    run(ops_.argmax_merge, {.best = best, .records = records});
    return records_of(records)[0].token;
  }

  // One row under `rules`, whose words stand behind another row's.
  int32_t sample_ruled(const std::vector<double>& logits,
                       SampleRow row,
                       const LogitRules& rules,
                       const std::vector<double>& history = std::vector<double>(64)) {
    std::vector<int32_t> words = {0, 1, 2, 3};
    row.rules = rules.counts;
    row.rules_begin = static_cast<int32_t>(words.size());
    words.insert(words.end(), rules.words.begin(), rules.words.end());
    return sample({logits}, {row}, 1, history, words)[0].token;
  }

  static TestTensor words_of(const std::vector<int32_t>& words) {
    return TestTensor(DType::kI32, {static_cast<int64_t>(words.size())}, {words.begin(), words.end()});
  }
  static TestTensor bytes_of(const std::vector<SampleRow>& rows) {
    TestTensor bytes(DType::kU8,
                     {static_cast<int64_t>(rows.size()), static_cast<int64_t>(sizeof(SampleRow))});
    std::memcpy(bytes.view().data, rows.data(), rows.size() * sizeof(SampleRow));
    return bytes;
  }
  static std::vector<SampleRecord> records_of(const TestTensor& tensor) {
    std::vector<SampleRecord> records(static_cast<size_t>(tensor.view().dim(0)));
    std::memcpy(records.data(), tensor.view().data, records.size() * sizeof(SampleRecord));
    return records;
  }
};

}  // namespace llm_dist::kernels
