// The KV cache's blocks as numbers: reference counts, a free list in least-recently-used order, and an index
// from the content of full blocks to the block that holds it, so that a prefix can be found again after its
// owner has gone. All operations are O(1) and allocate nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llm_dist::sched {

// Names the content of a full block and of everything before it. 128 bits: two different prefixes that met in
// one hash would show one client another client's cache.
struct BlockHash {
  uint64_t low = 0;
  uint64_t high = 0;
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// The hash of a full block of `tokens` that follows the block named `parent` ({} for the first block).
BlockHash chain_hash(BlockHash parent, std::span<const int32_t> tokens);

class BlockPool {
 public:
  static constexpr int32_t kNone = -1;

  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t ref_count(int32_t block) const;

  // A block with one reference; kNone when none is free. Blocks without known content go first: what was
  // released, the last first, then what was never used, ascending. Then the hashed block that was released
  // longest ago, whose content is forgotten.
  int32_t allocate();
  // One reference more; a free (but hashed) block is taken off the free list.
  void retain(int32_t block);
  // One reference less; without references the block is free, and stays findable if it is hashed.
  void release(int32_t block);

  // Says what a block in use contains. A content that another block holds already keeps that block: false.
  bool set_hash(int32_t block, BlockHash hash);
  // The block that holds this content, or kNone. It takes no reference: retain() before the next allocate().
  int32_t lookup(BlockHash hash) const;

 private:
  struct Block {
    BlockHash hash;
    int32_t ref_count = 0;
    int32_t prev = 0;  // in the free list, a ring through the sentinel
    int32_t next = 0;
    bool hashed = false;
  };

  int32_t sentinel() const { return num_blocks(); }
  int32_t& next_of(int32_t index) {
    return index == sentinel() ? head_ : blocks_[static_cast<size_t>(index)].next;
  }
  int32_t& prev_of(int32_t index) {
    return index == sentinel() ? tail_ : blocks_[static_cast<size_t>(index)].prev;
  }
  void link_between(int32_t prev, int32_t block, int32_t next);
  void unlink(int32_t block);
  size_t find_cell(BlockHash hash) const;
  void forget(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> cells_;  // open addressing: block or kNone; a power of two, at most half full
  int32_t head_ = 0;
  int32_t tail_ = 0;
  int32_t num_free_ = 0;
};

}  // namespace llm_dist::sched
