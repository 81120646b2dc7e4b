// Who makes the sum over a tensor group that the embedding is, where the residual stream begins.
#include "parallel/vocab.h"

#include <gtest/gtest.h>

#include <array>

#include "parallel/norm.h"
#include "tests/parallel/rank_of_group.h"

namespace llm_dist::parallel {
namespace {

constexpr int64_t kVocab = 10;
constexpr std::array<int32_t, kRows> kTokens = {3, 9, 0, 2};  // with two ranks 9 is the other's

// The entrance of a model up to its first norm.
class Entrance : public RankOfGroup {
 public:
  Entrance(Layout layout, int64_t most_rows, bool hands_terms = false)
      : RankOfGroup(layout, most_rows, hands_terms) {
    std::array<int32_t, kRows> tokens = kTokens;
    view_.token_ids = Tensor::contiguous(tokens.data(), DType::kI32, {kRows});
    const VocabWeight table(context_, "table", kVocab, kHidden);
    const VocabParallelEmbedding embedding(context_, table);
    const RmsNorm norm(context_, "norm", kHidden, 1e-5f);
    const ResidualStream stream(context_, kHidden);
    allocate();
    Hidden hidden = stream.entrance(view_);
    for (int64_t i = 0; i < hidden.residual.numel(); ++i)
      hidden.residual.as<float>()[i] = 7;  // of a step before
    hidden.x = embedding.forward(hidden.residual, view_);
    const Normed normed =
        hidden.x ? norm.add_and_norm(hidden.x, hidden.residual) : norm.norm(hidden.residual);
    normed_ = values(normed.x.rows);
    residual_ = values(hidden.residual);
  }

  const std::vector<float>& normed() const { return normed_; }
  const std::vector<float>& residual() const { return residual_; }

 private:
  std::vector<float> normed_;
  std::vector<float> residual_;
};

std::vector<float> rows_of(const std::vector<float>& all, int64_t begin, int64_t count) {
  return {all.begin() + begin * kHidden, all.begin() + (begin + count) * kHidden};
}

TEST(VocabParallelEmbedding, ARankAloneLooksUpWhatTheStreamBeginsWith) {
  const Entrance alone({}, kRows);
  EXPECT_EQ(alone.names(), (Calls{"embedding", "rms_norm"}));
  EXPECT_EQ(rows_of(alone.residual(), 2, 1), (std::vector<float>{-2, 1.5f, -0.5f, -2.5f, 1, -1, 2.5f, 0.5f}));
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
