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

namespace llm_dist::parallel {
namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kHidden = 8;
constexpr int64_t kInner = 6;

void must(const Status& status) { CHECK(status.ok(), "{}", status.to_string()); }

using Calls = std::vector<std::string>;

class CallNames : public kernels::OpObserver {
 public:
  void before(const kernels::OpCall& call, device::Stream&) override {
    names.push_back(call.name);
    rows.push_back(call.rows);
  }
  void after(const kernels::OpCall&, device::Stream&) override {}

  Calls names;
  std::vector<int64_t> rows;
};

// Rank 0 of a group whose other ranks have the same numbers.
class Group : public comm::Communicator {
 public:
  explicit Group(int size) : info_{.backend = "fake", .name = "tp", .size = size} {}
  const comm::CommInfo& info() const override { return info_; }

  void all_reduce(const Tensor& data, comm::ReduceOp, device::Stream& stream) override {
    ++all_reduces;
    add_up(data, data, stream);
  }
  void reduce_scatter(const Tensor& in, const Tensor& out, comm::ReduceOp, device::Stream& stream) override {
    ++reduce_scatters;
    add_up(in, out, stream);
  }
  void all_gather(const Tensor&, const Tensor&, device::Stream&) override {}
  void broadcast(const Tensor&, int, device::Stream&) override {}
  void send(const Tensor&, int, device::Stream&) override {}
  void recv(const Tensor&, int, device::Stream&) override {}
  void all_to_all(const Tensor&, const Tensor&, device::Stream&) override {}
  Status poll() const override { return ok_status(); }
  void abort(Status) override {}

  void add_up(const Tensor& in, const Tensor& out, device::Stream& stream) const {
    must(stream.synchronize(Deadline::after_seconds(10)));
    for (int64_t i = 0; i < out.numel(); ++i)
      out.as<float>()[i] = in.as<float>()[i] * static_cast<float>(info_.size);
  }

  int all_reduces = 0;
  int reduce_scatters = 0;

 private:
  comm::CommInfo info_;
};

// Makes the calls that it stands for.
class Reducer : public comm::NormReducer {
 public:
  Reducer(const Group& group, const kernels::Ops& ops, int64_t most_rows)
      : group_(group), ops_(ops), most_rows_(most_rows) {}

  bool takes(int64_t rows, int64_t hidden, DType dtype) const override {
    return rows <= most_rows_ && hidden == kHidden && dtype == DType::kF32;
  }
  void all_reduce_add_rms_norm(const comm::SumAndNorm& call, device::Stream& stream) override {
    ++calls;
    sent_calls += call.sent ? 1 : 0;
    group_.add_up(call.x, call.x, stream);
    ops_.table().add_rms_norm(ops_.state(),
                              stream,
                              {.x = call.x,
                               .residual = call.residual,
                               .weight = call.weight,
                               .epsilon = call.epsilon,
                               .out = call.out});
  }

  device::PeerTerms terms(int64_t, int64_t, DType) const override {
    device::PeerTerms terms;
    if (takes_terms) terms.size = group_.info().size;
    return terms;
  }
  bool takes_shares(int64_t rows, int64_t hidden, DType dtype) const override {
    return takes(rows, hidden, dtype) && rows % group_.info().size == 0;
  }
  // Apart from each other once they are handed.
  Tensor shared_term(int rank, int64_t rows, int64_t hidden, DType dtype) const override {
    const int64_t share = rows / group_.info().size;
    const int64_t at = hands_terms_ ? 2 * rank * share : rank * share;
    return Tensor::contiguous(term_.data() + at * hidden, dtype, {share, hidden});
  }
  void hand_terms() override { hands_terms_ = true; }
  device::HandedRows handed_rows(int64_t, int64_t, DType, bool) const override {
    return {.rank = group_.info().rank, .size = group_.info().size};
  }
  Tensor shared_out(int64_t rows, int64_t hidden, DType dtype) const override {
    return Tensor::contiguous(out_.data(), dtype, {rows, hidden});
  }
  // Of the rows that are the other ranks' nothing comes.
  void add_rms_norm_of_shares(const comm::SharesAndNorm& call, device::Stream& stream) override {
    CHECK(call.out.data == out_.data());
    const int64_t share = call.out.dim(0) / group_.info().size;
    CHECK_EQ(call.residual.dim(0), share);
    kept_calls += call.kept ? 1 : 0;
    all_reduce_add_rms_norm({.x = own_term(call.residual),
                             .residual = call.residual,
                             .weight = call.weight,
                             .epsilon = call.epsilon,
                             .out = call.out.narrow(0, 0, share)},
                            stream);
  }
  void add_shares(const Tensor& residual, device::Stream& stream) override {
    const Tensor term = own_term(residual);
    group_.add_up(term, term, stream);
    ops_.table().add(ops_.state(), stream, {.a = residual, .b = term});
  }
  // This rank's, as it was left.
  std::vector<float> term_for(int rank) const {
    const Tensor term = shared_term(rank, kRows, kHidden, DType::kF32);
    return {term.as<float>(), term.as<float>() + term.numel()};
  }

  int calls = 0;
  int sent_calls = 0;
  int kept_calls = 0;
  bool takes_terms = false;

 private:
  Tensor own_term(const Tensor& share) const {
    return Tensor::contiguous(term_.data(), share.dtype, {share.dim(0), share.dim(1)});
  }

  const Group& group_;
  const kernels::Ops& ops_;
  int64_t most_rows_;
  bool hands_terms_ = false;
  mutable std::array<float, 2 * kRows * kHidden> term_{};
  mutable std::array<float, kRows * kHidden> out_{};
};

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

// In steps in which every rank has a multiple of what products hand, where all ranks' products do.
TEST(Contribution, ReadersHandRowsOfSomeSteps) {
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
TEST(Contribution, ReadersTakeCodesInSomeSteps) {
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
        *weights.matrices[0].normed_as = {.codes = true, .shares = true, .half_ahead = true};
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
  EXPECT_TRUE(takes(shared, kEnough).half_ahead);
  // Norms leave no codes of wider rows.
  EXPECT_TRUE(takes(shared, kEnough, true, kernels::kMostCodedHidden).shares);
  EXPECT_FALSE(takes(shared, kEnough, true, kernels::kMostCodedHidden + 8).codes);
  EXPECT_FALSE(takes(shared, kEnough, true, kernels::kMostCodedHidden + 8).shares);
}

// Codes have memory of their own, of as many rows as are whole in any step: behind the last attention a step
// of shares has few rows, which are whole.
TEST(Contribution, NormsLeaveCodesBesideTheirInput) {
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

// Of Llama-3.1-8B's matrices: queries, keys and values among four ranks, gate and up among eight.
TEST(Contribution, ReadersWantColumnsAheadWhereTheirOwnRowsAreSoonDone) {
  auto wants = [](int64_t rows, int tp) { return wants_half_ahead({.n = rows / tp, .k = 4096}, tp); };
  EXPECT_FALSE(wants(6144, 2));
  EXPECT_TRUE(wants(6144, 4));
  EXPECT_FALSE(wants(28672, 2));
  EXPECT_FALSE(wants(28672, 4));
  EXPECT_TRUE(wants(28672, 8));
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
