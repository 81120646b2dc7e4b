// Who makes the sum over a tensor group that the embedding is, where the residual stream begins.
#include "parallel/vocab.h"

#include <gtest/gtest.h>

#include <array>
#include <list>

#include "kernels/cpu/cpu_ops.h"
#include "parallel/norm.h"
#include "parallel/residual.h"
#include "src/device/cpu/cpu_backend.h"
#include "tests/parallel/call_names.h"
#include "tests/parallel/reducing_group.h"

namespace llm_dist::parallel {
namespace {

constexpr int64_t kVocab = 10;
constexpr std::array<int32_t, kRows> kTokens = {3, 9, 0, 2};  // with two ranks 9 is the other's

// The entrance of a model up to its first norm, on rank 0.
class Entrance {
 public:
  // most_rows: of the calls that the group's reducer takes, shared or not; −1: the group has none.
  Entrance(Layout layout, int64_t most_rows, bool hands_terms = false)
      : group_(layout.tp),
        reducer_(group_, ops_, most_rows),
        arena_({.tokens = kRows, .local_tokens = kRows, .samples = 1}) {
    if (hands_terms) reducer_.hand_terms();
    Context context{.mesh = Mesh(layout, 0),
                    .dtype = DType::kF32,
                    .arena = &arena_,
                    .weights = &weights_,
                    .ops = &ops_,
                    .tensor_group = &group_,
                    .norm_reducer = most_rows < 0 ? nullptr : &reducer_};
    const bool shares = layout.is_sequence_parallel(kRows);
    std::array<int32_t, kRows> tokens = kTokens;
    const StepView view{.num_tokens = kRows,
                        .local_tokens = shares ? kRows / layout.tp : kRows,
                        .sequence_parallel = shares,
                        .token_ids = Tensor::contiguous(tokens.data(), DType::kI32, {kRows})};
    const VocabWeight table(context, "table", kVocab, kHidden);
    const VocabParallelEmbedding embedding(context, table);
    const RmsNorm norm(context, "norm", kHidden, 1e-5f);
    const ResidualStream stream(context, kHidden);
    must(arena_.allocate(*backend_));
    fill_weights();

    Hidden hidden = stream.entrance(view);
    for (int64_t i = 0; i < hidden.residual.numel(); ++i)
      hidden.residual.as<float>()[i] = 7;  // of a step before
    hidden.x = embedding.forward(hidden.residual, view);
    const Normed normed =
        hidden.x ? norm.add_and_norm(hidden.x, hidden.residual) : norm.norm(hidden.residual);
    must(stream_->synchronize(Deadline::after_seconds(10)));
    normed_ = values(normed.x.rows);
    residual_ = values(hidden.residual);
  }

  const Calls& names() const { return observer_.names; }
  const Reducer& reducer() const { return reducer_; }
  const std::vector<float>& normed() const { return normed_; }
  const std::vector<float>& residual() const { return residual_; }

 private:
  void fill_weights() {
    auto numbers = [&](int64_t count) {
      std::vector<float>& some = numbers_.emplace_back(static_cast<size_t>(count));
      for (size_t i = 0; i < some.size(); ++i) some[i] = static_cast<float>(1 + i * 7 % 11);
      return some.data();
    };
    for (const MatrixSlot& slot : weights_.matrices) {
      *slot.target = {.scheme = WeightScheme::kF32, .n = slot.rows, .k = slot.cols};
      slot.target->parts[0] =
          Tensor::contiguous(numbers(slot.rows * slot.cols), DType::kU8, {slot.rows, slot.cols * 4});
    }
    for (const VectorSlot& slot : weights_.vectors)
      *slot.target = Tensor::contiguous(numbers(slot.size), DType::kF32, {slot.size});
  }
  static std::vector<float> values(const Tensor& tensor) {
    return {tensor.as<float>(), tensor.as<float>() + tensor.numel()};
  }

  std::unique_ptr<device::Backend> backend_ = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> stream_ = backend_->make_stream("test");
  std::unique_ptr<kernels::OpState> state_ =
      kernels::cpu_ops().make_state(*backend_, {.max_tokens = kRows, .max_features = kHidden}).value();
  CallNames observer_;
  kernels::Ops ops_{kernels::cpu_ops(), *state_, *stream_, &observer_};
  std::list<std::vector<float>> numbers_;
  Group group_;
  Reducer reducer_;
  Arena arena_;
  WeightMap weights_;
  std::vector<float> normed_;
  std::vector<float> residual_;
};

std::vector<float> rows_of(const std::vector<float>& all, int64_t begin, int64_t count) {
  return {all.begin() + begin * kHidden, all.begin() + (begin + count) * kHidden};
}

TEST(VocabParallelEmbedding, ARankAloneLooksUpWhatTheStreamBeginsWith) {
  const Entrance alone({}, kRows);
  EXPECT_EQ(alone.names(), (Calls{"embedding", "rms_norm"}));
  EXPECT_EQ(rows_of(alone.residual(), 2, 1), (std::vector<float>{1, 8, 4, 11, 7, 3, 10, 6}));
}

TEST(VocabParallelEmbedding, TheSumIsMadeBeforeTheNormWhereTheGroupHasNoReducer) {
  const Entrance whole({.tp = 2}, -1);
  EXPECT_EQ(whole.names(), (Calls{"embedding", "all_reduce", "rms_norm"}));
  EXPECT_EQ(rows_of(whole.residual(), 1, 1), std::vector<float>(kHidden, 0.0f));
  EXPECT_NE(rows_of(whole.residual(), 3, 1), std::vector<float>(kHidden, 0.0f));
  const Entrance shares({.tp = 2, .sequence_parallel = true}, -1);
  EXPECT_EQ(shares.names(), (Calls{"embedding", "reduce_scatter", "rms_norm"}));
  EXPECT_EQ(shares.residual(), rows_of(whole.residual(), 0, kRows / 2));
  EXPECT_EQ(shares.normed(), rows_of(whole.normed(), 0, kRows / 2));
}

TEST(VocabParallelEmbedding, TheFirstNormMakesTheSumWhereTheGroupCan) {
  const Entrance apart({.tp = 2}, -1);
  const Entrance fused({.tp = 2}, kRows);
  EXPECT_EQ(fused.names(), (Calls{"clear_residual", "embedding", "all_reduce_add_rms_norm"}));
  EXPECT_EQ(fused.residual(), apart.residual());
  EXPECT_EQ(fused.normed(), apart.normed());
  const Entrance not_taken({.tp = 2}, kRows - 1);
  EXPECT_EQ(not_taken.names(), apart.names());
}

TEST(VocabParallelEmbedding, TheFirstNormOfSharesMakesTheSumOfTheRowsOfEachRank) {
  const Entrance apart({.tp = 2}, -1);
  for (bool hands : {false, true}) {
    const Entrance shares({.tp = 2, .sequence_parallel = true}, kRows, hands);
    EXPECT_EQ(shares.names(), (Calls{"clear_residual", "embedding", "embedding", "add_rms_norm_of_shares"}));
    EXPECT_EQ(shares.residual(), rows_of(apart.residual(), 0, kRows / 2));
    EXPECT_EQ(rows_of(shares.normed(), 0, kRows / 2), rows_of(apart.normed(), 0, kRows / 2));
    // This rank's term of the other's rows: half of what two such ranks add up to.
    std::vector<float> doubled = shares.reducer().term_for(1);
    for (float& value : doubled) value *= 2;
    EXPECT_EQ(doubled, rows_of(apart.residual(), kRows / 2, kRows / 2));
  }
}

}  // namespace
}  // namespace llm_dist::parallel
