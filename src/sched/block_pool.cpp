#include "src/sched/block_pool.h"

#include <bit>

#include "src/base/check.h"

namespace llm_dist::sched {
namespace {

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014): the finalizer of
// SplitMix64.
uint64_t scramble(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

BlockHash chain_hash(BlockHash parent, std::span<const int32_t> tokens) {
  BlockHash hash{.low = scramble(parent.low + 0x9e3779b97f4a7c15),
                 .high = scramble(parent.high + 0xd1b54a32d192ed03)};
  for (const int32_t token : tokens) {
    const auto word = static_cast<uint32_t>(token);
    hash.low = scramble(hash.low ^ (word + 0x9e3779b97f4a7c15));
    hash.high = scramble(hash.high + (word ^ 0xd1b54a32d192ed03));
  }
  return hash;
}

BlockPool::BlockPool(int32_t num_blocks)
    : blocks_(static_cast<size_t>(num_blocks)),
      cells_(std::bit_ceil(static_cast<size_t>(num_blocks) * 2), kNone),
      head_(num_blocks),
      tail_(num_blocks) {
  CHECK_GT(num_blocks, 0);
  for (int32_t block = 0; block < num_blocks; ++block) link_between(tail_, block, sentinel());
}

int32_t BlockPool::ref_count(int32_t block) const { return blocks_.at(static_cast<size_t>(block)).ref_count; }

int32_t BlockPool::allocate() {
  if (num_free_ == 0) return kNone;
  const int32_t block = head_;
  unlink(block);
  forget(block);
  blocks_[static_cast<size_t>(block)].ref_count = 1;
  return block;
}

void BlockPool::retain(int32_t block) {
  Block& held = blocks_.at(static_cast<size_t>(block));
  CHECK(held.ref_count > 0 || held.hashed, "block {} is free and holds nothing", block);
  if (held.ref_count == 0) unlink(block);
  ++held.ref_count;
}

void BlockPool::release(int32_t block) {
  Block& held = blocks_.at(static_cast<size_t>(block));
  CHECK(held.ref_count > 0, "block {} is free already", block);
  if (--held.ref_count > 0) return;
  if (held.hashed) {
    link_between(tail_, block, sentinel());
  } else {
    link_between(sentinel(), block, head_);
  }
}

bool BlockPool::set_hash(int32_t block, BlockHash hash) {
  Block& held = blocks_.at(static_cast<size_t>(block));
  CHECK(held.ref_count > 0 && !held.hashed, "block {} is free or has a hash", block);
  const size_t cell = find_cell(hash);
  if (cells_[cell] != kNone) return false;
  cells_[cell] = block;
  held.hash = hash;
  held.hashed = true;
  return true;
}

int32_t BlockPool::lookup(BlockHash hash) const { return cells_[find_cell(hash)]; }

void BlockPool::link_between(int32_t prev, int32_t block, int32_t next) {
  blocks_[static_cast<size_t>(block)].prev = prev;
  blocks_[static_cast<size_t>(block)].next = next;
  next_of(prev) = block;
  prev_of(next) = block;
  ++num_free_;
}

void BlockPool::unlink(int32_t block) {
  const Block& held = blocks_[static_cast<size_t>(block)];
  next_of(held.prev) = held.next;
  prev_of(held.next) = held.prev;
  --num_free_;
}

// The cell that holds this content, or the empty one where it would go.
size_t BlockPool::find_cell(BlockHash hash) const {
  const size_t mask = cells_.size() - 1;
  size_t cell = hash.low & mask;
  while (cells_[cell] != kNone && blocks_[static_cast<size_t>(cells_[cell])].hash != hash)
    cell = (cell + 1) & mask;
  return cell;
}

// Takes the block out of the index. Entries behind it move up, so that no search stops at the hole.
void BlockPool::forget(int32_t block) {
  Block& held = blocks_[static_cast<size_t>(block)];
  if (!held.hashed) return;
  held.hashed = false;
  const size_t mask = cells_.size() - 1;
  size_t hole = find_cell(held.hash);
  for (size_t cell = (hole + 1) & mask; cells_[cell] != kNone; cell = (cell + 1) & mask) {
    const size_t home = blocks_[static_cast<size_t>(cells_[cell])].hash.low & mask;
    if (((cell - home) & mask) < ((cell - hole) & mask)) continue;
    cells_[hole] = cells_[cell];
    hole = cell;
  }
  cells_[hole] = kNone;
}

}  // namespace llm_dist::sched
