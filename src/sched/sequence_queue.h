// The two orders the scheduler keeps: who waits, and who runs. Both by goes_before().
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "src/sched/sequence.h"

namespace llm_dist::sched {

class WaitingQueue {
 public:
  bool empty() const { return queue_.empty(); }
  int32_t size() const { return static_cast<int32_t>(queue_.size()); }
  Sequence& front() const { return **queue_.begin(); }
  void insert(Sequence& sequence) { queue_.insert(&sequence); }
  void erase(Sequence& sequence) { queue_.erase(&sequence); }

 private:
  struct Before {
    bool operator()(const Sequence* a, const Sequence* b) const { return goes_before(*a, *b); }
  };
  std::set<Sequence*, Before> queue_;
};

// A sorted array: it is walked in every step and changes rarely.
class RunningSet {
 public:
  explicit RunningSet(int32_t capacity) { members_.reserve(static_cast<size_t>(capacity)); }

  bool empty() const { return members_.empty(); }
  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  Sequence& last() const { return *members_.back(); }
  std::span<Sequence* const> members() const { return members_; }
  void insert(Sequence& sequence);
  void erase(const Sequence& sequence);

 private:
  std::vector<Sequence*> members_;
};

}  // namespace llm_dist::sched
