// The small ops of the CPU against references in double.
#include <cmath>

#include "tests/kernels/op_fixture.h"

namespace llm_dist::kernels {
namespace {

class CpuOpsTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Targets, CpuOpsTest, testing::ValuesIn(kTargets), target_name);

Weight dense_weight(const TestTensor& table) {
  Weight weight;
  weight.scheme = scheme_of(table.view().dtype);
  weight.n = table.view().dim(0);
  weight.k = table.view().dim(1);
  weight.parts[0] =
      Tensor::contiguous(table.view().data, DType::kU8, {weight.n, table.view().bytes() / weight.n});
  return weight;
}

TEST_P(CpuOpsTest, EmbeddingLooksUpOneShardAndIsZeroOutside) {
  for (DType table_type : kActivationTypes) {
    for (DType type : kActivationTypes) {
      const TestTensor table = random_tensor(table_type, {10, 37});
      const TestTensor ids(DType::kI32, {6}, {20, 29, 19, 30, 0, 24});
      const TestTensor out = random_tensor(type, {6, 37});
      run(ops_.embedding, {.ids = ids, .table = dense_weight(table), .vocab_begin = 20, .out = out});
      std::vector<double> expected;
      for (int64_t t = 0; t < 6; ++t) {
        const auto row = static_cast<int64_t>(ids.at(t)) - 20;
        for (int64_t i = 0; i < 37; ++i)
          expected.push_back(row >= 0 && row < 10 ? table.at(row * 37 + i) : 0);
      }
      expect_near_all(expected, out, rounding_of(type));
    }
  }
}

TEST_P(CpuOpsTest, EmbeddingReadsQuantizedRows) {
  constexpr int64_t kHidden = 64;
  TestTensor rows(DType::kU8, {3, row_bytes(WeightScheme::kQ8_0, kHidden)});
  auto* bytes = static_cast<uint8_t*>(rows.view().data);
  for (int64_t block = 0; block < 6; ++block) {
    const Float16 d = to_f16(0.5f * static_cast<float>(block + 1));
    std::memcpy(bytes + block * 34, &d, 2);
    for (int64_t i = 0; i < 32; ++i)
      bytes[block * 34 + 2 + i] = static_cast<uint8_t>(static_cast<int8_t>(i * 7 - 100));
  }
  const Weight table{.scheme = WeightScheme::kQ8_0, .n = 3, .k = kHidden, .parts = {rows.view()}};
  const TestTensor ids(DType::kI32, {2}, {2, 0});
  for (DType type : kActivationTypes) {
    const TestTensor out(type, {2, kHidden});
    run(ops_.embedding, {.ids = ids, .table = table, .out = out});
    std::vector<double> expected;
    for (int64_t block : {4, 5, 0, 1}) {
      for (int64_t i = 0; i < 32; ++i) {
        expected.push_back(0.5 * static_cast<double>(block + 1) * static_cast<double>(i * 7 - 100));
      }
    }
    expect_near_all(expected, out, rounding_of(type));
  }
}

std::vector<double> reference_norm(const std::vector<double>& x, const TestTensor& weight, double epsilon) {
  const auto n = static_cast<size_t>(weight.view().dim(0));
  std::vector<double> out;
  for (size_t t = 0; t < x.size() / n; ++t) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += x[t * n + i] * x[t * n + i];
    const double scale = 1 / std::sqrt(sum / static_cast<double>(n) + epsilon);
    for (size_t i = 0; i < n; ++i) out.push_back(x[t * n + i] * scale * weight.at(static_cast<int64_t>(i)));
  }
  return out;
}

TEST_P(CpuOpsTest, RmsNorm) {
  for (DType type : kActivationTypes) {
    for (int64_t hidden : {1, 8, 31, 64, 576, 1000}) {
      for (int64_t tokens : {0, 1, 5, 70}) {
        const TestTensor x = random_tensor(type, {tokens, hidden}, 3);
        const TestTensor weight = random_tensor(type, {hidden});
        const TestTensor out(type, {tokens, hidden});
        run(ops_.rms_norm, {.x = x, .weight = weight, .epsilon = 1e-3f, .out = out});
        expect_near_all(reference_norm(x.values(), weight, 1e-3), out, rounding_of(type));
        const std::vector<double> separate = out.values();
        run(ops_.rms_norm, {.x = x, .weight = weight, .epsilon = 1e-3f, .out = x});
        EXPECT_EQ(separate, x.values()) << "in place";
      }
    }
  }
}

TEST_P(CpuOpsTest, RmsNormOfStridedRows) {
  const TestTensor wide = random_tensor(DType::kF32, {4, 50});
  const TestTensor weight = random_tensor(DType::kF32, {20});
  const TestTensor out(DType::kF32, {4, 20});
  run(ops_.rms_norm, {.x = wide.view().narrow(1, 17, 20), .weight = weight, .out = out});
  std::vector<double> slice;
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t i = 0; i < 20; ++i) slice.push_back(wide.at(t * 50 + 17 + i));
  }
  expect_near_all(reference_norm(slice, weight, 1e-5), out, 1e-5);
}

TEST_P(CpuOpsTest, AddRmsNormRoundsTheResidualFirst) {
  for (DType type : kActivationTypes) {
    const TestTensor x = random_tensor(type, {9, 77});
    const TestTensor residual = random_tensor(type, {9, 77}, 20);
    const TestTensor weight = random_tensor(type, {77});
    TestTensor sum(type, {9, 77});
    for (int64_t i = 0; i < 9 * 77; ++i) sum.set(i, x.at(i) + residual.at(i));
    run(ops_.add_rms_norm, {.x = x, .residual = residual, .weight = weight, .out = x});
    EXPECT_EQ(sum.values(), residual.values());
    expect_near_all(reference_norm(sum.values(), weight, 1e-5), x, rounding_of(type));
  }
}

TEST_P(CpuOpsTest, AddRoundsToNearestEven) {
  for (DType type : kActivationTypes) {
    const TestTensor a = random_tensor(type, {3, 45});
    const TestTensor b = random_tensor(type, {3, 45}, 0.01);
    TestTensor sum(type, {3, 45});
    for (int64_t i = 0; i < 3 * 45; ++i)
      sum.set(i, static_cast<double>(static_cast<float>(a.at(i)) + static_cast<float>(b.at(i))));
    run(ops_.add, {.a = a, .b = b});
    EXPECT_EQ(sum.values(), a.values()) << to_string(type);
  }
}

TEST_P(CpuOpsTest, SiluAndMul) {
  for (DType type : kActivationTypes) {
    for (int64_t n : {1, 16, 53, 1536}) {
      TestTensor gate_up = random_tensor(type, {6, 2 * n}, 4);
      gate_up.set(0, -200);
      gate_up.set(2 * n, 200);
      const TestTensor out(type, {6, n});
      run(ops_.silu_and_mul, {.gate_up = gate_up, .out = out});
      std::vector<double> expected;
      for (int64_t t = 0; t < 6; ++t) {
        for (int64_t i = 0; i < n; ++i) {
          const double gate = gate_up.at(t * 2 * n + i);
          expected.push_back(gate / (1 + std::exp(-gate)) * gate_up.at(t * 2 * n + n + i));
        }
      }
      expect_near_all(expected, out, rounding_of(type));
    }
  }
}

struct RopeCase {
  DType type;
  DType kv_type;
  int64_t head_dim;
};

// Four tokens, the third one padding; blocks of 3 in a cache whose blocks are used out of order.
TEST_P(CpuOpsTest, RopeRotatesAndAppends) {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kBlock = 3, kBlocks = 5, kMaxPosition = 40;
  const TestTensor positions(DType::kI32, {4}, {0, 39, 99999, 7});
  const std::vector<int64_t> slots = {14, 0, -1, 7};
  const TestTensor kv_slots(DType::kI32, {4}, {14, 0, -1, 7});
  for (DType type : kActivationTypes) {
    for (DType kv_type : kCacheTypes) {
      for (int64_t d : {8, 16, 24, 64, 128}) {
        const int64_t width = (kHeads + 2 * kKvHeads) * d;
        const TestTensor qkv = random_tensor(type, {4, width});
        const std::vector<double> before = qkv.values();
        const TestTensor table = random_tensor(DType::kF32, {kMaxPosition, d});
        const TestTensor k_cache(kv_type, {kBlocks, kKvHeads, kBlock, d});
        const TestTensor v_cache(kv_type, {kBlocks, kKvHeads, kBlock, d});
        std::vector<double> expected_qkv = before;
        std::vector<double> expected_k(static_cast<size_t>(kBlocks * kKvHeads * kBlock * d));
        std::vector<double> expected_v = expected_k;
        for (int64_t t : {0, 1, 3}) {
          const auto p = static_cast<int64_t>(positions.at(t));
          for (int64_t h = 0; h < kHeads + 2 * kKvHeads; ++h) {
            for (int64_t i = 0; i < d; ++i) {
              const auto at = static_cast<size_t>(t * width + h * d + i);
              const int64_t pair = i < d / 2 ? i : i - d / 2;
              const double cosine = table.at(p * d + pair);
              const double sine = table.at(p * d + d / 2 + pair);
              const double other = i < d / 2 ? -before[at + static_cast<size_t>(d / 2)]
                                             : before[at - static_cast<size_t>(d / 2)];
              if (h < kHeads + kKvHeads) expected_qkv[at] = before[at] * cosine + other * sine;
              if (h < kHeads) continue;
              const int64_t slot = slots[static_cast<size_t>(t)];
              const int64_t head = (h - kHeads) % kKvHeads;
              auto& cache = h < kHeads + kKvHeads ? expected_k : expected_v;
              cache[static_cast<size_t>(((slot / kBlock * kKvHeads + head) * kBlock + slot % kBlock) * d +
                                        i)] = expected_qkv[at];
            }
          }
        }
        run(ops_.rope_append,
            {.qkv = qkv,
             .positions = positions,
             .kv_slots = kv_slots,
             .cos_sin = table,
             .k_cache = k_cache,
             .v_cache = v_cache,
             .num_heads = kHeads,
             .num_kv_heads = kKvHeads});
        expect_near_all(expected_qkv, qkv, 2 * rounding_of(type));
        expect_near_all(expected_k, k_cache, 2 * rounding_of(kv_type));
        expect_near_all(expected_v, v_cache, 2 * rounding_of(kv_type));
      }
    }
  }
}

// Whatever the value, it goes into the cache as to_f8e4m3() says.
TEST_P(CpuOpsTest, CodesOfTheCache) {
  const std::vector<double> values = values_about_f8();
  const auto d = static_cast<int64_t>(values.size());
  const std::vector<double> nothing(static_cast<size_t>(2 * d));
  std::vector<double> all = nothing;
  all.insert(all.end(), values.begin(), values.end());
  const TestTensor qkv(DType::kF32, {1, 3 * d}, all);
  const TestTensor table(DType::kF32, {1, d}, std::vector<double>(static_cast<size_t>(d)));
  const TestTensor zero(DType::kI32, {1}, {0});
  const TestTensor k_cache(DType::kF8E4M3, {1, 1, 1, d});
  const TestTensor v_cache(DType::kF8E4M3, {1, 1, 1, d});
  run(ops_.rope_append,
      {.qkv = qkv,
       .positions = zero,
       .kv_slots = zero,
       .cos_sin = table,
       .k_cache = k_cache,
       .v_cache = v_cache,
       .num_heads = 1,
       .num_kv_heads = 1});
  for (int64_t i = 0; i < d; ++i) {
    const auto value = static_cast<float>(values[static_cast<size_t>(i)]);
    EXPECT_EQ(v_cache.at(i), static_cast<double>(to_float(to_f8e4m3(value)))) << value;
  }
}

TEST_P(CpuOpsTest, RopeBeyondTheTableIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TestTensor qkv(DType::kF32, {1, 24});
  const TestTensor table(DType::kF32, {4, 8});
  const TestTensor cache(DType::kF32, {1, 1, 4, 8});
  const TestTensor positions(DType::kI32, {1}, {4});
  const TestTensor slots(DType::kI32, {1}, {0});
  EXPECT_DEATH(run(ops_.rope_append,
                   {.qkv = qkv,
                    .positions = positions,
                    .kv_slots = slots,
                    .cos_sin = table,
                    .k_cache = cache,
                    .v_cache = cache,
                    .num_heads = 1,
                    .num_kv_heads = 1}),
               "position 4 beyond");
}

TEST_P(CpuOpsTest, TokenState) {
  const TestTensor history(DType::kI32, {3, 4}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const TestTensor slots(DType::kI32, {4}, {2, -1, 0, 1});
  const TestTensor positions(DType::kI32, {4}, {3, 77, 0, 1});
  const TestTensor ids(DType::kI32, {4}, {-5, -5, -5, -5});
  run(ops_.gather_tokens, {.history = history, .slots = slots, .positions = positions, .ids = ids});
  EXPECT_EQ(ids.values(), (std::vector<double>{12, 0, 1, 6}));

  const TestTensor tokens(DType::kI32, {10}, {100, 0, 0, 101, 0, 0, 102, 0, 0, 103});
  run(ops_.scatter_tokens,
      {.tokens = tokens, .token_stride = 3, .slots = slots, .positions = positions, .history = history});
  EXPECT_EQ(history.values(), (std::vector<double>{102, 2, 3, 4, 5, 103, 7, 8, 9, 10, 11, 100}));
}

TEST_P(CpuOpsTest, GatherRows) {
  for (DType type : kActivationTypes) {
    const TestTensor x = random_tensor(type, {5, 19});
    const TestTensor rows(DType::kI32, {4}, {4, -1, 0, 4});
    const TestTensor out = random_tensor(type, {4, 19});
    run(ops_.gather_rows, {.x = x, .rows = rows, .out = out});
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t j = 0; j < 19; ++j) {
        const auto row = static_cast<int64_t>(rows.at(i));
        EXPECT_EQ(out.at(i * 19 + j), row < 0 ? 0 : x.at(row * 19 + j));
      }
    }
  }
}

TEST_P(CpuOpsTest, GatheredShardsAddUpToTheRowsOfTheWhole) {
  const TestTensor whole = random_tensor(DType::kF32, {6, 19});
  const TestTensor rows(DType::kI32, {5}, {5, -1, 0, 3, 2});
  std::vector<double> sums(5 * 19);
  for (int64_t shard = 0; shard < 2; ++shard) {
    const TestTensor out = random_tensor(DType::kF32, {5, 19});
    run(ops_.gather_rows,
        {.x = whole.view().rows(3 * shard, 3), .x_begin = 3 * shard, .x_whole = 6, .rows = rows, .out = out});
    for (int64_t i = 0; i < out.view().numel(); ++i) sums[static_cast<size_t>(i)] += out.at(i);
  }
  for (int64_t i = 0; i < 5; ++i) {
    const auto row = static_cast<int64_t>(rows.at(i));
    for (int64_t j = 0; j < 19; ++j)
      EXPECT_EQ(sums[static_cast<size_t>(i * 19 + j)], row < 0 ? 0 : whole.at(row * 19 + j));
  }
}

TEST_P(CpuOpsTest, EmptyBatches) {
  for (DType type : kActivationTypes) {
    const TestTensor none(type, {0, 16});
    const TestTensor two(type, {0, 32});
    const TestTensor qkv(type, {0, 48});
    const TestTensor weight(type, {16});
    const TestTensor table(type, {4, 16});
    const TestTensor ids(DType::kI32, {0});
    const TestTensor history(DType::kI32, {2, 4});
    const TestTensor cache(type, {1, 1, 4, 16});
    const TestTensor cos_sin(DType::kF32, {4, 16});
    run(ops_.embedding, {.ids = ids, .table = dense_weight(table), .out = none});
    run(ops_.rms_norm, {.x = none, .weight = weight, .out = none});
    run(ops_.add_rms_norm, {.x = none, .residual = none, .weight = weight, .out = none});
    run(ops_.add, {.a = none, .b = none});
    run(ops_.silu_and_mul, {.gate_up = two, .out = none});
    run(ops_.rope_append,
        {.qkv = qkv,
         .positions = ids,
         .kv_slots = ids,
         .cos_sin = cos_sin,
         .k_cache = cache,
         .v_cache = cache,
         .num_heads = 1,
         .num_kv_heads = 1});
    run(ops_.gather_tokens, {.history = history, .slots = ids, .positions = ids, .ids = ids});
    run(ops_.scatter_tokens, {.tokens = ids, .slots = ids, .positions = ids, .history = history});
    run(ops_.gather_rows, {.x = table, .rows = ids, .out = none});
  }
}

}  // namespace
}  // namespace llm_dist::kernels
