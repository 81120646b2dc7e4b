#include "src/server/token_queue.h"

namespace llm_dist::server {

bool TokenQueue::push(TokenRecord& record) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return false;
    if (spill_.empty() && size_ < ring_.size()) {
      ring_[(head_ + size_++) % ring_.size()] = std::move(record);
    } else {
      spill_.push_back(std::move(record));
      ++num_spilled_;
    }
  }
  not_empty_.notify_one();
  return true;
}

std::optional<TokenRecord> TokenQueue::pop(Deadline deadline) {
  std::unique_lock lock(mutex_);
  not_empty_.wait_until(lock, deadline.when(), [&] { return closed_ || size_ > 0 || !spill_.empty(); });
  std::optional<TokenRecord> record;
  if (size_ > 0) {
    record = std::move(ring_[head_]);
    head_ = (head_ + 1) % ring_.size();
    --size_;
  } else if (!spill_.empty()) {
    record = std::move(spill_.front());
    spill_.pop_front();
  }
  return record;
}

void TokenQueue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  not_empty_.notify_all();
}

bool TokenQueue::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

uint64_t TokenQueue::num_spilled() const {
  std::lock_guard lock(mutex_);
  return num_spilled_;
}

}  // namespace llm_dist::server
