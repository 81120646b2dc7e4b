#include "src/sched/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace llm_dist::sched {
namespace {

BlockHash hash_of(int32_t content) { return chain_hash({}, std::span(&content, 1)); }

TEST(BlockPool, GivesEachBlockOnceAndThenNone) {
  BlockPool pool(5);
  std::set<int32_t> blocks;
  for (int i = 0; i < 5; ++i) blocks.insert(pool.allocate());
  EXPECT_EQ(blocks, (std::set<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(pool.allocate(), BlockPool::kNone);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(3);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_EQ(pool.allocate(), 3);
}

TEST(BlockPool, BlocksAscendAndTheLastReleasedComesFirst) {
  BlockPool pool(6);
  for (int32_t block = 0; block < 4; ++block) EXPECT_EQ(pool.allocate(), block);
  for (const int32_t block : {2, 1, 0}) pool.release(block);
  for (const int32_t block : {0, 1, 2, 4, 5}) EXPECT_EQ(pool.allocate(), block);
}

TEST(BlockPool, SharedBlockIsFreeAfterItsLastReference) {
  BlockPool pool(1);
  const int32_t block = pool.allocate();
  pool.retain(block);
  pool.release(block);
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.ref_count(block), 1);
  pool.release(block);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, ReleasedContentIsFoundUntilItsBlockIsNeeded) {
  BlockPool pool(3);
  const int32_t a = pool.allocate();
  const int32_t b = pool.allocate();
  EXPECT_TRUE(pool.set_hash(a, hash_of(1)));
  EXPECT_TRUE(pool.set_hash(b, hash_of(2)));
  pool.release(b);
  pool.release(a);
  EXPECT_EQ(pool.lookup(hash_of(1)), a);
  EXPECT_EQ(pool.lookup(hash_of(2)), b);

  const int32_t c = pool.allocate();  // the block without content goes first
  EXPECT_NE(c, a);
  EXPECT_NE(c, b);
  EXPECT_EQ(pool.allocate(), b);  // then the one released longest ago
  EXPECT_EQ(pool.lookup(hash_of(2)), BlockPool::kNone);
  pool.retain(a);  // a hit takes it off the free list
  EXPECT_EQ(pool.num_free(), 0);
  EXPECT_EQ(pool.allocate(), BlockPool::kNone);
  EXPECT_EQ(pool.lookup(hash_of(1)), a);
}

TEST(BlockPool, SecondBlockWithTheSameContentIsNotIndexed) {
  BlockPool pool(2);
  const int32_t a = pool.allocate();
  const int32_t b = pool.allocate();
  EXPECT_TRUE(pool.set_hash(a, hash_of(1)));
  EXPECT_FALSE(pool.set_hash(b, hash_of(1)));
  EXPECT_EQ(pool.lookup(hash_of(1)), a);
}

TEST(BlockPool, ChainHashNamesContentAndWhatIsBefore) {
  const std::vector<int32_t> x{1, 2, 3};
  const std::vector<int32_t> y{1, 2, 4};
  const BlockHash first = chain_hash({}, x);
  EXPECT_EQ(first, chain_hash({}, x));
  EXPECT_NE(first, chain_hash({}, y));
  EXPECT_NE(chain_hash(first, x), chain_hash(chain_hash({}, y), x));
  EXPECT_NE(chain_hash(first, x), first);
}

// Against an obvious model: a map from content to block, with many collisions in the small index.
TEST(BlockPool, IndexAgreesWithAMapOverRandomOperations) {
  std::mt19937 random(3);
  BlockPool pool(37);
  std::map<int32_t, int32_t> block_of;  // content → block
  std::map<int32_t, int32_t> content_of;
  std::vector<int32_t> held;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && pool.num_free() > 0) {
      const int32_t block = pool.allocate();
      if (content_of.contains(block)) block_of.erase(content_of.at(block));
      content_of.erase(block);
      held.push_back(block);
      const auto content = static_cast<int32_t>(random() % 60);
      const bool fresh = block_of.emplace(content, block).second;
      ASSERT_EQ(pool.set_hash(block, hash_of(content)), fresh);
      if (fresh) content_of[block] = content;
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.release(held.back());
      held.pop_back();
    }
    const auto content = static_cast<int32_t>(random() % 60);
    ASSERT_EQ(pool.lookup(hash_of(content)),
              block_of.contains(content) ? block_of.at(content) : BlockPool::kNone);
    ASSERT_EQ(pool.num_free(), 37 - static_cast<int32_t>(held.size()));
  }
}

TEST(BlockPoolDeathTest, ReleasingAFreeBlockIsABug) {
  BlockPool pool(1);
  EXPECT_DEATH(pool.release(0), "free already");
  EXPECT_DEATH(pool.retain(0), "holds nothing");
}

}  // namespace
}  // namespace llm_dist::sched
