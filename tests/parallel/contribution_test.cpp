// Who makes the sum over a tensor group that stands between a row-parallel layer and the norm behind it.
#include "parallel/contribution.h"

#include <gtest/gtest.h>

#include <array>
#include <list>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "parallel/linear.h"
#include "parallel/norm.h"
#include "parallel/residual.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/parallel/call_names.h"
#include "tests/parallel/reducing_group.h"

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
class Stage {
 public:
  // most_rows: of the calls that the group's reducer takes, shared or not; −1: the group has none.
  Stage(Layout layout,
        int64_t most_rows,
        bool hands_terms = false,
        Sends sends = Sends::kNothing,
        bool reader_hands = false)
      : sends_(sends),
        reader_hands_(reader_hands),
        group_(layout.tp),
        reducer_(group_, ops_, most_rows),
        arena_({.tokens = kRows, .local_tokens = kRows, .samples = 1}) {
    if (hands_terms) reducer_.hand_terms();
    reducer_.takes_terms = sends != Sends::kNothing;
    Context context{.mesh = Mesh(layout, 0),
                    .dtype = DType::kF32,
                    .arena = &arena_,
                    .weights = &weights_,
                    .ops = &ops_,
                    .tensor_group = &group_,
                    .norm_reducer = most_rows < 0 ? nullptr : &reducer_};
    const bool shares = layout.is_sequence_parallel(kRows);
    view_ = {
        .num_tokens = kRows, .local_tokens = shares ? kRows / layout.tp : kRows, .sequence_parallel = shares};
    RowParallelLinear out(context, "out", {0, kInner}, kHidden, false);
    RmsNorm norm(context, "norm", kHidden, 1e-5f);
    ResidualStream stream(context, kHidden);
    must(arena_.allocate(*backend_));
    fill_weights();
    run(out, norm, stream);
  }

  const Calls& names() const { return observer_.names; }
  const std::vector<int64_t>& rows() const { return observer_.rows; }
  const Group& group() const { return group_; }
  int fused_calls() const { return reducer_.calls; }
  const Reducer& reducer() const { return reducer_; }
  const std::vector<float>& normed() const { return normed_; }
  const std::vector<float>& left() const { return left_; }
  const device::HandedRows& handed() const { return handed_; }

 private:
  // residual += out(x); its norm; residual += out(x) again.
  void run(const RowParallelLinear& out, const RmsNorm& norm, const ResidualStream& stream) {
    const Tensor x = numbers({kRows, kInner}, 3);
    Hidden hidden = stream.entrance(view_);
    for (int64_t i = 0; i < hidden.residual.numel(); ++i)
      hidden.residual.as<float>()[i] = 0.25f * static_cast<float>(i % 5);
    hidden.x = out.forward({x}, view_);
    const Normed normed = norm.add_and_norm(hidden.x, hidden.residual, {.shares = reader_hands_});
    normed_ = values(normed.x.rows);
    handed_ = normed.handed;
    if (sends_ == Sends::kToNorm) return;
    hidden.x = out.forward({x}, view_);
    left_ = values(stream.finish(hidden, view_));
  }

  Tensor numbers(std::initializer_list<int64_t> shape, int salt) {
    const int64_t bytes = Tensor::contiguous(nullptr, DType::kF32, shape).bytes();
    buffers_.push_back(backend_->allocate(bytes, device::MemoryKind::kDevice).value());
    Tensor tensor = buffers_.back().view(DType::kF32, shape);
    for (int64_t i = 0; i < tensor.numel(); ++i)
      tensor.as<float>()[i] = 0.1f * static_cast<float>((i * 7 + salt) % 11 - 5);
    return tensor;
  }

  void fill_weights() {
    for (const MatrixSlot& slot : weights_.matrices) {
      const Tensor rows = numbers({slot.rows, slot.cols}, 1);
      *slot.target = {.scheme = WeightScheme::kF32, .n = slot.rows, .k = slot.cols};
      slot.target->parts[0] = Tensor::contiguous(rows.data, DType::kU8, {slot.rows, slot.cols * 4});
    }
    for (const VectorSlot& slot : weights_.vectors) *slot.target = numbers({slot.size}, 2);
  }

  std::vector<float> values(const Tensor& tensor) {
    must(stream_->synchronize(Deadline::after_seconds(10)));
    return {tensor.as<float>(), tensor.as<float>() + tensor.numel()};
  }

  Sends sends_;
  bool reader_hands_;
  std::unique_ptr<device::Backend> backend_ = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> stream_ = backend_->make_stream("test");
  std::unique_ptr<kernels::OpState> state_ =
      kernels::cpu_ops().make_state(*backend_, {.max_tokens = kRows, .max_features = kHidden}).value();
  CallNames observer_;
  const kernels::OpTable table_ = sending_ops();
  kernels::Ops ops_{table_, *state_, *stream_, &observer_};
  std::list<device::Buffer> buffers_;
  Group group_;
  Reducer reducer_;
  Arena arena_;
  WeightMap weights_;
  StepView view_;
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
