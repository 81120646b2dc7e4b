// What a norm leaves to the column-parallel layer behind it: rows in 16 bits or codes, all of them or this
// rank's.
#include <gtest/gtest.h>

#include "kernels/cpu/cpu_ops.h"
#include "parallel/linear.h"
#include "parallel/norm.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/parallel/reducing_group.h"

namespace llm_dist::parallel {
namespace {

// In steps in which every rank has a multiple of what products hand, where all ranks' products do.
TEST(NormedRows, AreHandedInSomeSteps) {
  const Layout layout{.tp = 2, .sequence_parallel_from = 256};
  Arena arena({.tokens = 1, .local_tokens = 1, .samples = 1});
  WeightMap weights;
  const Context context{.mesh = Mesh(layout, 0), .arena = &arena, .weights = &weights};
  const ColumnParallelLinear reader(context, "reader", {{"reader", {0, kInner}}}, kHidden, false);
  auto hands = [&](int64_t tokens) {
    return reader.takes({.num_tokens = tokens, .sequence_parallel = layout.is_sequence_parallel(tokens)})
        .shares;
  };
  const int64_t enough = 2 * kernels::kHandedRows;
  EXPECT_FALSE(hands(enough));
  ASSERT_EQ(weights.matrices.size(), 1u);
  weights.matrices[0].normed_as->shares = true;
  EXPECT_TRUE(hands(enough));
  EXPECT_TRUE(hands(3 * enough));
  for (int64_t tokens : {enough - 2, enough + 2, enough / 2, int64_t{128}})
    EXPECT_FALSE(hands(tokens)) << tokens;
}

// Where all ranks' products do, of as many rows: but not of local rows that are gathered behind the norm, in
// 16 bits. By weights of 8 bits only codes are handed.
TEST(NormedRows, AreCodesInSomeSteps) {
  constexpr int64_t kEnough = 2 * kernels::kHandedRows;
  auto backend = device::make_cpu_backend({});
  auto stream = backend->make_stream("test");
  kernels::OpTable table = kernels::cpu_ops();
  table.takes_codes = [](const kernels::OpState&, const Weight& weight, bool has_bias, DType, int64_t rows) {
    return weight.scheme == WeightScheme::kF8E4M3 && !has_bias && rows >= kEnough;
  };
  auto state = table.make_state(*backend, {.max_tokens = 1, .max_features = 1}).value();
  const kernels::Ops ops(table, *state, *stream);
  const Group group(2);
  Reducer reducer(group, ops, 2 * kEnough);
  auto takes =
      [&](const Layout& layout, int64_t tokens, bool sums_into_norm = true, int64_t hidden = kHidden) {
        Arena arena({.tokens = 1, .local_tokens = 1, .samples = 1});
        WeightMap weights;
        const Context context{.mesh = Mesh(layout, 0),
                              .arena = &arena,
                              .weights = &weights,
                              .ops = &ops,
                              .norm_reducer = sums_into_norm ? &reducer : nullptr};
        const ColumnParallelLinear reader(context, "reader", {{"reader", {0, kInner}}}, kHidden, false);
        *weights.matrices[0].target = {.scheme = WeightScheme::kF8E4M3, .n = kInner, .k = hidden};
        const StepView step{.num_tokens = tokens, .sequence_parallel = layout.is_sequence_parallel(tokens)};
        EXPECT_FALSE(reader.takes(step).codes);  // not agreed
        *weights.matrices[0].normed_as = {.codes = true, .shares = true};
        return reader.takes(step);
      };
  const Layout shared{.tp = 2, .sequence_parallel_from = 256};
  EXPECT_TRUE(takes({}, kEnough).codes);
  EXPECT_FALSE(takes({}, kEnough).shares);
  EXPECT_FALSE(takes({}, kEnough - 1).codes);
  EXPECT_TRUE(takes({.tp = 2}, kEnough, false).codes);
  EXPECT_TRUE(takes(shared, kEnough).codes);
  EXPECT_TRUE(takes(shared, kEnough).shares);
  EXPECT_FALSE(takes(shared, kEnough, false).codes);
  EXPECT_FALSE(takes(shared, kEnough, false).shares);
  // Norms leave no codes of wider rows.
  EXPECT_TRUE(takes(shared, kEnough, true, kernels::kMostCodedHidden).shares);
  EXPECT_FALSE(takes(shared, kEnough, true, kernels::kMostCodedHidden + 8).codes);
  EXPECT_FALSE(takes(shared, kEnough, true, kernels::kMostCodedHidden + 8).shares);
}

// Codes have memory of their own, of as many rows as are whole in any step: behind the last attention a step
// of shares has few rows, which are whole.
TEST(NormedRows, LieBesideTheirInputAsCodes) {
  static kernels::AddRmsNormParams seen;
  kernels::OpTable table = kernels::cpu_ops();
  table.add_rms_norm = [](kernels::OpState&, device::Stream&, const kernels::AddRmsNormParams& params) {
    seen = params;
  };
  auto backend = device::make_cpu_backend({});
  auto stream = backend->make_stream("test");
  auto state = table.make_state(*backend, {.max_tokens = 1, .max_features = 1}).value();
  const kernels::Ops ops(table, *state, *stream);
  Arena arena({.tokens = kRows, .local_tokens = kRows / 2, .samples = 1});
  WeightMap weights;
  const Context context{.mesh = Mesh({.tp = 2, .sequence_parallel = true}, 0),
                        .dtype = DType::kBF16,
                        .arena = &arena,
                        .weights = &weights,
                        .ops = &ops};
  const RmsNorm norm(context, "norm", kHidden, 1e-5f);
  must(arena.allocate(*backend));
  const device::Buffer memory = backend->allocate(4 * kRows * kHidden, device::MemoryKind::kDevice).value();
  const Tensor x = memory.view(DType::kBF16, {kRows, kHidden});
  const Tensor residual = memory.view(DType::kBF16, {kRows, kHidden}, 2 * kRows * kHidden);
  const Normed plain = norm.add_and_norm(Contribution::finished(x), residual);
  EXPECT_EQ(plain.x.rows.data, x.data);
  EXPECT_FALSE(plain.x.scales);
  EXPECT_FALSE(seen.out_scales);
  const Normed coded = norm.add_and_norm(Contribution::finished(x), residual, {.codes = true});
  EXPECT_EQ(coded.x.rows.dtype, DType::kF8E4M3);
  EXPECT_EQ(coded.x.rows.dim(0), kRows);
  EXPECT_EQ(coded.x.rows.dim(1), kHidden);
  EXPECT_EQ(coded.x.scales.dtype, DType::kF32);
  EXPECT_EQ(coded.x.scales.dim(0), 1);
  EXPECT_EQ(coded.x.scales.dim(1), kRows);
  EXPECT_EQ(coded.x.scales.data, static_cast<std::byte*>(coded.x.rows.data) + kRows * kHidden);
  EXPECT_EQ(seen.out.data, coded.x.rows.data);
  EXPECT_EQ(seen.out_scales.data, coded.x.scales.data);
  const auto* begin = memory.data();
  const auto* codes = static_cast<std::byte*>(coded.x.rows.data);
  EXPECT_TRUE(codes < begin || codes >= begin + memory.bytes());
}

}  // namespace
}  // namespace llm_dist::parallel
