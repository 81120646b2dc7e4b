// Shard arithmetic over many shapes: every item has an owner, exactly one or as many as the rule says.
#include "parallel/partition.h"

#include <gtest/gtest.h>

namespace llm_dist::parallel {
namespace {

TEST(SplitEven, CoversEverythingInOrderWithPartsThatDifferByOneGranuleAtMost) {
  for (int64_t granule : {1, 32}) {
    for (int64_t granules = 0; granules <= 20; ++granules) {
      for (int parts = 1; parts <= 7; ++parts) {
        int64_t next = 0;
        for (int i = 0; i < parts; ++i) {
          Range part = split_even(granules * granule, parts, i, granule);
          EXPECT_EQ(part.begin, next);
          EXPECT_EQ(part.count % granule, 0);
          EXPECT_LE(part.count, split_even(granules * granule, parts, 0, granule).count);
          EXPECT_GE(part.count, granules / parts * granule);
          next = part.end();
        }
        EXPECT_EQ(next, granules * granule);
      }
    }
  }
}

TEST(SplitEven, LargerPartsComeFirst) {
  EXPECT_EQ(split_even(50, 4, 0), (Range{0, 13}));
  EXPECT_EQ(split_even(50, 4, 1), (Range{13, 13}));
  EXPECT_EQ(split_even(50, 4, 2), (Range{26, 12}));
  EXPECT_EQ(split_even(1536, 5, 4, 32), (Range{1248, 288}));  // 48 blocks: 10, 10, 10, 9, 9
}

// For every rank: its query heads divide evenly over its KV heads, and query head h meets KV head h / group.
void check_heads(int64_t num_heads, int64_t num_kv_heads, int tp) {
  SCOPED_TRACE(std::to_string(num_heads) + " heads, " + std::to_string(num_kv_heads) + " KV, tp " +
               std::to_string(tp));
  int64_t group = num_heads / num_kv_heads;
  int64_t next = 0;
  for (int rank = 0; rank < tp; ++rank) {
    HeadShard shard = shard_heads(num_heads, num_kv_heads, tp, rank);
    EXPECT_EQ(shard.q.begin, next);
    next = shard.q.end();
    if (shard.q.count == 0) continue;  // model/layout.h refuses such layouts
    ASSERT_GT(shard.kv.count, 0);
    ASSERT_EQ(shard.q.count % shard.kv.count, 0);
    int64_t local_group = shard.q.count / shard.kv.count;
    for (int64_t q = 0; q < shard.q.count; ++q) {
      EXPECT_EQ(shard.kv.begin + q / local_group, (shard.q.begin + q) / group);
    }
  }
  EXPECT_EQ(next, num_heads);
}

TEST(ShardHeads, EachQueryHeadHasOneRankAndMeetsItsOwnKvHead) {
  for (int64_t kv : {1, 2, 3, 4, 5, 8}) {
    for (int64_t group : {1, 2, 3, 4, 5, 8}) {
      for (int tp = 1; tp <= std::min<int64_t>(12, kv * group); ++tp) check_heads(kv * group, kv, tp);
    }
  }
}

TEST(ShardHeads, KvHeadsAreReplicatedOnlyBeyondTheirNumber) {
  // 9 heads on 3 KV heads over 4 ranks: the first KV head stands on two ranks, which share its query heads.
  EXPECT_EQ(shard_heads(9, 3, 4, 0), (HeadShard{{0, 2}, {0, 1}}));
  EXPECT_EQ(shard_heads(9, 3, 4, 1), (HeadShard{{2, 1}, {0, 1}}));
  EXPECT_EQ(shard_heads(9, 3, 4, 2), (HeadShard{{3, 3}, {1, 1}}));
  EXPECT_EQ(shard_heads(9, 3, 4, 3), (HeadShard{{6, 3}, {2, 1}}));
  // Over 2 ranks: two KV heads and one.
  EXPECT_EQ(shard_heads(9, 3, 2, 0), (HeadShard{{0, 6}, {0, 2}}));
  EXPECT_EQ(shard_heads(9, 3, 2, 1), (HeadShard{{6, 3}, {2, 1}}));
}

TEST(ShardVocab, EveryRowHasOneRankAndAllShardsAreAsLong) {
  for (int64_t vocab : {1, 5, 64, 131, 32000, 49152}) {
    for (int tp = 1; tp <= 9; ++tp) {
      int64_t next = 0;
      for (int rank = 0; rank < tp; ++rank) {
        VocabShard shard = shard_vocab(vocab, tp, rank);
        EXPECT_EQ(shard.padded, (vocab + tp - 1) / tp);
        EXPECT_GE(shard.count, 0);
        EXPECT_LE(shard.count, shard.padded);
        EXPECT_EQ(shard.begin, next);
        // Entry v stands on rank v / padded: what the sampler counts on.
        EXPECT_TRUE(shard.count == 0 || shard.begin == shard.padded * rank);
        next = shard.begin + shard.count;
      }
      EXPECT_EQ(next, vocab);
    }
  }
}

TEST(StageLayers, CoversEveryLayerAndNoStageIsEmpty) {
  for (int64_t layers = 1; layers <= 33; ++layers) {
    for (int pp = 1; pp <= std::min<int64_t>(layers, 9); ++pp) {
      int64_t next = 0;
      for (int stage = 0; stage < pp; ++stage) {
        Range range = stage_layers(layers, pp, stage);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.count, layers / pp);
        EXPECT_LE(range.count, (layers + pp - 1) / pp);
        next = range.end();
      }
      EXPECT_EQ(next, layers);
    }
  }
}

TEST(StageLayers, TheLastStageTakesARemainderLast) {
  EXPECT_EQ(stage_layers(6, 4, 0).count, 1);
  EXPECT_EQ(stage_layers(6, 4, 1).count, 2);
  EXPECT_EQ(stage_layers(6, 4, 2).count, 2);
  EXPECT_EQ(stage_layers(6, 4, 3).count, 1);
  EXPECT_EQ(stage_layers(5, 2, 0).count, 3);
  EXPECT_EQ(stage_layers(30, 3, 1, {12, 10, 8}), (Range{12, 10}));
}

}  // namespace
}  // namespace llm_dist::parallel
