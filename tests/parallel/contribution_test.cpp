// Who makes the sum over a tensor group that stands between a row-parallel layer and the norm behind it.
#include "parallel/contribution.h"

#include <gtest/gtest.h>

#include <utility>

#include "parallel/linear.h"
#include "parallel/norm.h"
#include "tests/parallel/rank_of_group.h"

namespace llm_dist::parallel {
namespace {

// The CPU's ops, with a product that could send its term. Where it is sent, it is in place here.
kernels::OpTable sending_ops() {
  kernels::OpTable ops = kernels::cpu_ops();
  ops.linear_terms =
      [](kernels::OpState& state, device::Stream& stream, const kernels::LinearTermsParams& params) {
        kernels::cpu_ops().linear(state, stream, params.product);
        return true;
      };
  return ops;
}

// kToNorm: the stage ends behind the norm.
enum class Sends : uint8_t { kNothing, kToNorm, kToTheEnd };

// What a stage does between two matrices, and at its end.
class Stage : public RankOfGroup {
 public:
  Stage(Layout layout,
        int64_t most_rows,
        bool hands_terms = false,
        Sends sends = Sends::kNothing,
        bool reader_hands = false)
      : RankOfGroup(layout, most_rows, hands_terms, sending_ops()) {
    reducer_.takes_terms = sends != Sends::kNothing;
    const RowParallelLinear out(context_, "out", {0, kInner}, kHidden, false);
    const RmsNorm norm(context_, "norm", kHidden, 1e-5f);
    const ResidualStream stream(context_, kHidden);
    allocate();
    // residual += out(x); its norm; residual += out(x) again.
    const Tensor x = numbers({kRows, kInner}, 3);
    Hidden hidden = stream.entrance(view_);
    for (int64_t i = 0; i < hidden.residual.numel(); ++i)
      hidden.residual.as<float>()[i] = 0.25f * static_cast<float>(i % 5);
    hidden.x = out.forward({x}, view_);
    const Normed normed = norm.add_and_norm(hidden.x, hidden.residual, {.shares = reader_hands});
    normed_ = values(normed.x.rows);
    handed_ = normed.handed;
    if (sends == Sends::kToNorm) return;
    hidden.x = out.forward({x}, view_);
    left_ = values(stream.finish(hidden, view_));
  }

  int fused_calls() const { return reducer_.calls; }
  const std::vector<float>& normed() const { return normed_; }
  const std::vector<float>& left() const { return left_; }
  const device::HandedRows& handed() const { return handed_; }

 private:
  std::vector<float> normed_;
  std::vector<float> left_;
  device::HandedRows handed_;
};

const Calls kPlain = {"linear", "all_reduce", "add_rms_norm", "linear", "all_reduce", "add"};

TEST(Contribution, TheSumIsMadeBeforeTheNormWhereTheGroupHasNoReducer) {
  Stage stage({.tp = 2}, -1);
  EXPECT_EQ(stage.names(), kPlain);
  EXPECT_EQ(stage.rows(), std::vector<int64_t>(6, kRows));
  EXPECT_EQ(stage.group().all_reduces, 2);
}

TEST(Contribution, OneCallMakesSumAdditionAndNormWhereTheGroupCan) {
  Stage plain({.tp = 2}, -1);
  Stage stage({.tp = 2}, kRows);
  // At a stage's end nothing is normed: the sum is a call of its own.
  EXPECT_EQ(stage.names(), (Calls{"linear", "all_reduce_add_rms_norm", "linear", "all_reduce", "add"}));
  EXPECT_EQ(stage.rows(), std::vector<int64_t>(5, kRows));
  EXPECT_EQ(stage.fused_calls(), 1);
  EXPECT_EQ(stage.group().all_reduces, 1);
  EXPECT_EQ(stage.normed(), plain.normed());
  EXPECT_EQ(stage.left(), plain.left());
}

TEST(Contribution, WhatTheReducerDoesNotTakeIsSummedBeforeTheNorm) {
  Stage plain({.tp = 2}, -1);
  Stage stage({.tp = 2}, kRows - 1);
  EXPECT_EQ(stage.names(), kPlain);
  EXPECT_EQ(stage.fused_calls(), 0);
  EXPECT_EQ(stage.normed(), plain.normed());
  EXPECT_EQ(stage.left(), plain.left());
}

TEST(Contribution, SequenceParallelSumsAreScattered) {
  Stage plain({.tp = 2}, -1);
  Stage stage({.tp = 2, .sequence_parallel = true}, -1);
  EXPECT_EQ(stage.names(),
            (Calls{"linear", "reduce_scatter", "add_rms_norm", "linear", "reduce_scatter", "add"}));
  EXPECT_EQ(stage.fused_calls(), 0);
  EXPECT_EQ(stage.group().all_reduces, 0);
  EXPECT_EQ(stage.group().reduce_scatters, 2);
  std::vector<float> own_rows = plain.normed();
  own_rows.resize(kRows / 2 * kHidden);
  EXPECT_EQ(stage.normed(), own_rows);
}

TEST(Contribution, SequenceParallelSumsAreLeftToTheNormOfSharesWhereTheGroupHasIt) {
  for (const Layout& layout :
       {Layout{.tp = 2, .sequence_parallel = true}, Layout{.tp = 2, .sequence_parallel_from = kRows}}) {
    Stage apart({.tp = 2, .sequence_parallel = true}, -1);
    Stage stage(layout, kRows);
    EXPECT_EQ(stage.names(),
              (Calls{"linear_shares", "add_rms_norm_of_shares", "linear_shares", "add_shares"}));
    EXPECT_EQ(stage.fused_calls(), 1);
    EXPECT_EQ(stage.group().reduce_scatters, 0);
    std::vector<float> own_rows = stage.normed();
    ASSERT_EQ(own_rows.size(), kRows * kHidden);
    own_rows.resize(kRows / 2 * kHidden);
    EXPECT_EQ(own_rows, apart.normed());
    EXPECT_EQ(stage.left(), apart.left());

    Stage handing(layout, kRows, true);
    EXPECT_EQ(handing.names(), stage.names());
    EXPECT_EQ(handing.normed(), stage.normed());
    EXPECT_EQ(handing.left(), stage.left());
    EXPECT_EQ(handing.reducer().term_for(1), stage.reducer().term_for(1));
    EXPECT_NE(stage.reducer().term_for(1), std::vector<float>(kRows / 2 * kHidden, 0.0f));
  }
}

TEST(Contribution, NormsOfSharesKeepRowsForAReaderThatHandsThem) {
  const Layout layout{.tp = 2, .sequence_parallel = true};
  for (bool hands : {false, true}) {
    Stage stage(layout, kRows, false, Sends::kNothing, hands);
    EXPECT_EQ(stage.reducer().kept_calls, hands ? 1 : 0);
    EXPECT_EQ(stage.handed().size, hands ? 2 : 0);
  }
  // Rows that no reducer makes shares of are all there.
  Stage apart(layout, -1, false, Sends::kNothing, true);
  EXPECT_EQ(apart.handed().size, 0);
  Stage whole({.tp = 2}, kRows, false, Sends::kNothing, true);
  EXPECT_EQ(whole.handed().size, 0);
}

TEST(Contribution, StepsOfFewerTokensAreNotSequenceParallel) {
  Stage stage({.tp = 2, .sequence_parallel_from = kRows + 1}, -1);
  EXPECT_EQ(stage.names(), kPlain);
}

TEST(Contribution, ARankAloneSumsNothing) {
  Stage stage({}, kRows);
  EXPECT_EQ(stage.names(), (Calls{"linear", "add_rms_norm", "linear", "add"}));
  EXPECT_EQ(stage.fused_calls(), 0);
  EXPECT_EQ(stage.group().all_reduces, 0);
}

TEST(Contribution, AProductSendsItsTermToTheNormBehindIt) {
  Stage plain({.tp = 2}, kRows);
  EXPECT_EQ(plain.reducer().sent_calls, 0);
  Stage stage({.tp = 2}, kRows, false, Sends::kToNorm);
  EXPECT_EQ(stage.names(), (Calls{"linear", "all_reduce_add_rms_norm"}));
  EXPECT_EQ(stage.reducer().sent_calls, 1);
  EXPECT_EQ(stage.normed(), plain.normed());
}

// Where no norm, or none of its kind, might take it: at a stage's end, of shares, of more rows than it takes.
TEST(Contribution, NothingIsSentThatNoNormTakes) {
  for (const auto& [layout, most_rows] : {std::pair(Layout{.tp = 2, .pp = 2}, kRows),
                                          std::pair(Layout{.tp = 2, .sequence_parallel = true}, kRows),
                                          std::pair(Layout{.tp = 2}, kRows - 1)}) {
    Stage plain(layout, most_rows);
    Stage stage(layout, most_rows, false, Sends::kToTheEnd);
    EXPECT_EQ(stage.reducer().sent_calls, 0);
    EXPECT_EQ(stage.names(), plain.names());
    EXPECT_EQ(stage.left(), plain.left());
  }
}

TEST(ContributionDeathTest, ASentTermIsNotSummedAgain) {
  EXPECT_DEATH(Stage({.tp = 2}, kRows, false, Sends::kToTheEnd), "terms that no norm takes");
}

TEST(ContributionDeathTest, ATermIsNotTakenForTheSum) {
  float number = 1;
  const Tensor tensor = Tensor::contiguous(&number, DType::kF32, {1, 1});
  EXPECT_DEATH((void)Contribution::partial(tensor).sum(), "taken for the sum");
  EXPECT_DEATH((void)Contribution::finished(tensor).term(), "taken for a rank's term");
  EXPECT_DEATH((void)Contribution::scattered(tensor).sum(), "taken for the sum");
  EXPECT_DEATH((void)Contribution::scattered(tensor).term(), "taken for a rank's term");
  EXPECT_FALSE(Contribution());
}

}  // namespace
}  // namespace llm_dist::parallel
