// A call of an op allocates nothing on any thread once the first has run.
#include "tests/base/allocation_count.h"
#include "tests/kernels/op_fixture.h"

namespace llm_dist::kernels {
namespace {

class CpuOpsAllocationTest : public OpTest {
 protected:
  template <typename Params>
  void expect_no_allocation(const char* name, Op<Params> op, const Params& params) {
    run(op, params);
    const int64_t before = num_allocations();
    run(op, params);
    EXPECT_EQ(num_allocations() - before, 0) << name;
  }
};
INSTANTIATE_TEST_SUITE_P(Targets, CpuOpsAllocationTest, testing::ValuesIn(kTargets), target_name);

TEST_P(CpuOpsAllocationTest, Activations) {
  const TestTensor x = random_tensor(DType::kBF16, {256, 576});
  const TestTensor half = random_tensor(DType::kBF16, {256, 288});
  const TestTensor weight = random_tensor(DType::kBF16, {576});
  expect_no_allocation("rms_norm", ops_.rms_norm, {.x = x, .weight = weight, .out = x});
  expect_no_allocation(
      "add_rms_norm", ops_.add_rms_norm, {.x = x, .residual = x, .weight = weight, .out = x});
  expect_no_allocation("add", ops_.add, {.a = x, .b = x});
  expect_no_allocation("silu_and_mul", ops_.silu_and_mul, {.gate_up = x, .out = half});
}

TEST_P(CpuOpsAllocationTest, RopeAndAttention) {
  const TestTensor qkv = random_tensor(DType::kF32, {100, 5 * 64});
  const TestTensor cos_sin = random_tensor(DType::kF32, {100, 64});
  const TestTensor cache = random_tensor(DType::kBF16, {10, 1, 10, 64});
  std::vector<double> counts(100);
  std::iota(counts.begin(), counts.end(), 0.0);
  const TestTensor positions(DType::kI32, {100}, counts);
  const TestTensor starts(DType::kI32, {2}, {0, 100});
  const TestTensor lens(DType::kI32, {1}, {100});
  const TestTensor tables(DType::kI32, {1, 10}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const TestTensor out(DType::kF32, {100, 3 * 64});
  expect_no_allocation("rope_append",
                       ops_.rope_append,
                       {.qkv = qkv,
                        .positions = positions,
                        .kv_slots = positions,
                        .cos_sin = cos_sin,
                        .k_cache = cache,
                        .v_cache = cache,
                        .num_heads = 3,
                        .num_kv_heads = 1});
  expect_no_allocation("attention",
                       ops_.attention,
                       {.q = qkv.view().narrow(1, 0, 3 * 64),
                        .k_cache = cache,
                        .v_cache = cache,
                        .query_starts = starts,
                        .context_lens = lens,
                        .block_tables = tables,
                        .out = out,
                        .num_heads = 3,
                        .num_kv_heads = 1});
}

TEST_P(CpuOpsAllocationTest, Sampling) {
  constexpr int64_t kVocab = 20000;
  const TestTensor logits = random_tensor(DType::kF32, {1, 4, kVocab}, 2);
  const TestTensor history = random_tensor(DType::kI32, {1, 50}, 100);
  const TestTensor records(DType::kI32, {4, kSampleRecordWords});
  const SampleRow rows[4] = {{.slot = 0, .temperature = 0},
                             {.slot = 0, .position = 50, .repetition_penalty = 1.2f, .num_logprobs = 5},
                             {.slot = 0, .top_k = 40, .top_p = 0.9f},
                             {.slot = 0, .top_p = 0.95f, .min_p = 0.01f}};
  const TestTensor row_bytes(DType::kU8, {4, static_cast<int64_t>(sizeof(SampleRow))});
  std::memcpy(row_bytes.view().data, rows, sizeof rows);
  expect_no_allocation(
      "sample",
      ops_.sample,
      {.logits = logits, .vocab_size = kVocab, .rows = row_bytes, .history = history, .records = records});
}

}  // namespace
}  // namespace llm_dist::kernels
