// TokenQueue: the way from the step thread to the stream thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "src/base/clock.h"
#include "src/server/token_record.h"

namespace llm_dist::server {

// A ring that is allocated once, so that handing a token over allocates nothing. A stream thread that falls
// so far behind that the ring is full loses nothing and stops nobody: what does not fit spills onto the heap,
// and is counted. That is bounded by what the running sequences may still generate.
class TokenQueue {
 public:
  explicit TokenQueue(size_t capacity) : ring_(capacity) {}

  // Any thread; never waits for room. False after close(); the record is then untouched.
  bool push(TokenRecord& record);
  // In the order of push(). Nothing when the deadline passed, or when closed and empty.
  std::optional<TokenRecord> pop(Deadline deadline);
  void close();
  bool closed() const;
  uint64_t num_spilled() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::vector<TokenRecord> ring_;
  std::deque<TokenRecord> spill_;  // younger than everything in the ring
  size_t head_ = 0;
  size_t size_ = 0;  // of the ring
  uint64_t num_spilled_ = 0;
  bool closed_ = false;
};

}  // namespace llm_dist::server
