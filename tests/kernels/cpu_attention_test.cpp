// Paged attention of the CPU against softmax(q · Kᵀ) · V in double.
#include <algorithm>
#include <cmath>

#include "tests/kernels/op_fixture.h"

namespace llm_dist::kernels {
namespace {

struct Sequence {
  int64_t queries;
  int64_t context;
};

struct Shape {
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t block_size;
};

// A batch over a cache whose blocks are dealt out at random; q is a slice of a wider matrix.
struct Batch {
  TestTensor qkv;
  TestTensor k_cache;
  TestTensor v_cache;
  TestTensor query_starts;
  TestTensor context_lens;
  TestTensor block_tables;
  TestTensor out;
  AttentionParams params;
};

class CpuAttentionTest : public OpTest {
 protected:
  Batch make_batch(const Shape& shape, const std::vector<Sequence>& sequences, DType type, DType kv_type) {
    std::vector<double> starts = {0};
    std::vector<double> contexts;
    int64_t max_context = 1;
    for (const Sequence& s : sequences) {
      starts.push_back(starts.back() + static_cast<double>(s.queries));
      contexts.push_back(static_cast<double>(s.context));
      max_context = std::max(max_context, s.context);
    }
    const auto n = static_cast<int64_t>(sequences.size());
    const auto tokens = static_cast<int64_t>(starts.back());
    const int64_t max_blocks = (max_context + shape.block_size - 1) / shape.block_size;
    const int64_t num_blocks = n * max_blocks + 1;
    std::vector<double> blocks(static_cast<size_t>(n * max_blocks));
    std::iota(blocks.begin(), blocks.end(), 1.0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    const int64_t q_width = shape.heads * shape.head_dim;
    Batch batch{random_tensor(type, {tokens, q_width + 2 * shape.kv_heads * shape.head_dim}, 2),
                random_tensor(kv_type, {num_blocks, shape.kv_heads, shape.block_size, shape.head_dim}),
                random_tensor(kv_type, {num_blocks, shape.kv_heads, shape.block_size, shape.head_dim}),
                TestTensor(DType::kI32, {n + 1}, starts),
                TestTensor(DType::kI32, {n}, contexts),
                TestTensor(DType::kI32, {n, max_blocks}, blocks),
                random_tensor(type, {tokens, q_width}),
                {}};
    batch.params = {.q = batch.qkv.view().narrow(1, 0, q_width),
                    .k_cache = batch.k_cache,
                    .v_cache = batch.v_cache,
                    .query_starts = batch.query_starts,
                    .context_lens = batch.context_lens,
                    .block_tables = batch.block_tables,
                    .out = batch.out,
                    .num_heads = static_cast<int32_t>(shape.heads),
                    .num_kv_heads = static_cast<int32_t>(shape.kv_heads),
                    .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)))};
    return batch;
  }

  void expect_matches_reference(const Shape& shape,
                                const std::vector<Sequence>& sequences,
                                DType type,
                                DType kv_type) {
    const Batch batch = make_batch(shape, sequences, type, kv_type);
    run(ops_.attention, batch.params);
    int64_t token = 0;
    for (size_t s = 0; s < sequences.size(); ++s) {
      for (int64_t i = 0; i < sequences[s].queries; ++i, ++token) {
        const int64_t visible = sequences[s].context - sequences[s].queries + i + 1;
        for (int64_t h = 0; h < shape.heads; ++h) {
          expect_head(shape, batch, static_cast<int64_t>(s), token, h, visible, rounding_of(type));
          if (HasFatalFailure()) return;
        }
      }
    }
  }

  static void expect_head(const Shape& shape,
                          const Batch& batch,
                          int64_t sequence,
                          int64_t token,
                          int64_t head,
                          int64_t visible,
                          double tolerance) {
    const int64_t d = shape.head_dim;
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    const auto cache_at = [&](int64_t j) {
      const auto block = static_cast<int64_t>(
          batch.block_tables.at(sequence * batch.block_tables.view().dim(1) + j / shape.block_size));
      return ((block * shape.kv_heads + kv_head) * shape.block_size + j % shape.block_size) * d;
    };
    std::vector<double> scores;
    for (int64_t j = 0; j < visible; ++j) {
      double dot = 0;
      for (int64_t i = 0; i < d; ++i) {
        dot +=
            batch.qkv.at(token * batch.qkv.view().dim(1) + head * d + i) * batch.k_cache.at(cache_at(j) + i);
      }
      scores.push_back(dot * static_cast<double>(batch.params.scale));
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    std::vector<double> result(static_cast<size_t>(d));
    double sum = 0;
    for (int64_t j = 0; j < visible; ++j) {
      const double weight = std::exp(scores[static_cast<size_t>(j)] - max);
      sum += weight;
      for (int64_t i = 0; i < d; ++i)
        result[static_cast<size_t>(i)] += weight * batch.v_cache.at(cache_at(j) + i);
    }
    for (int64_t i = 0; i < d; ++i) {
      const double expected = result[static_cast<size_t>(i)] / sum;
      ASSERT_NEAR(
          expected, batch.out.at((token * shape.heads + head) * d + i), tolerance * (4 + std::abs(expected)))
          << "token " << token << " head " << head << " element " << i << " of head_dim " << d;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, CpuAttentionTest, testing::ValuesIn(kTargets), target_name);

const std::vector<Sequence> kMixed = {{1, 1}, {1, 70}, {0, 0}, {37, 37}, {5, 130}, {1, 64}, {3, 65}};

TEST_P(CpuAttentionTest, MixedBatchesOfAllTypes) {
  for (DType type : kActivationTypes) {
    for (DType kv_type : kCacheTypes) expect_matches_reference({6, 2, 64, 16}, kMixed, type, kv_type);
  }
}

TEST_P(CpuAttentionTest, OddShapes) {
  const Shape shapes[] = {{1, 1, 8, 1},
                          {2, 1, 16, 7},
                          {9, 3, 24, 16},
                          {4, 4, 40, 5},
                          {5, 1, 128, 3},
                          {40, 1, 8, 16},
                          {2, 1, 256, 8},
                          {7, 1, 72, 100}};
  for (const Shape& shape : shapes) {
    expect_matches_reference(shape, kMixed, DType::kF32, DType::kF32);
    expect_matches_reference(shape, kMixed, DType::kF32, DType::kBF16);
    expect_matches_reference(shape, kMixed, DType::kF32, DType::kF8E4M3);
  }
}

TEST_P(CpuAttentionTest, LongContext) {
  expect_matches_reference({3, 1, 64, 16}, {{1, 2048}, {2, 2000}}, DType::kF32, DType::kF32);
  expect_matches_reference({3, 1, 64, 16}, {{1, 2048}, {2, 2000}}, DType::kBF16, DType::kBF16);
}

TEST_P(CpuAttentionTest, OneTokenAndEmptyBatches) {
  expect_matches_reference({3, 1, 64, 16}, {{1, 1}}, DType::kF32, DType::kF32);
  expect_matches_reference({3, 1, 64, 16}, {}, DType::kF32, DType::kF32);
  expect_matches_reference({3, 1, 64, 16}, {{0, 0}, {0, 9}}, DType::kBF16, DType::kF32);
}

// Rows behind the last sequence's are padding: they stay as they were.
TEST_P(CpuAttentionTest, PaddingRowsAreNotWritten) {
  Batch batch = make_batch({2, 1, 8, 4}, {{2, 6}, {3, 3}}, DType::kF32, DType::kF32);
  batch.query_starts.set(2, 2);
  const std::vector<double> before = batch.out.values();
  run(ops_.attention, batch.params);
  for (int64_t i = 2 * 16; i < 5 * 16; ++i) EXPECT_EQ(before[static_cast<size_t>(i)], batch.out.at(i));
  EXPECT_NE(before[0], batch.out.at(0));
}

// A prompt in one chunk, and its tokens one at a time, give the same bits.
TEST_P(CpuAttentionTest, ResultsDoNotDependOnTheBatch) {
  for (DType kv_type : kCacheTypes) {
    const Batch whole = make_batch({6, 2, 64, 16}, {{150, 150}}, DType::kF32, kv_type);
    run(ops_.attention, whole.params);
    for (int64_t t : {0, 1, 63, 64, 100, 149}) {
      const TestTensor starts(DType::kI32, {2}, {0, 1});
      const TestTensor contexts(DType::kI32, {1}, {static_cast<double>(t + 1)});
      const TestTensor out(DType::kF32, {1, 6 * 64});
      AttentionParams one = whole.params;
      one.q = whole.params.q.rows(t, 1);
      one.query_starts = starts;
      one.context_lens = contexts;
      one.out = out;
      run(ops_.attention, one);
      for (int64_t i = 0; i < 6 * 64; ++i)
        ASSERT_EQ(whole.out.at(t * 6 * 64 + i), out.at(i)) << "token " << t;
    }
  }
}

}  // namespace
}  // namespace llm_dist::kernels
