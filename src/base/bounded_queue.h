// BoundedQueue: many producers, many consumers, fixed capacity, no allocation after construction. close()
// wakes everyone.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/clock.h"

namespace llm_dist {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : slots_(capacity) {}

  // False when the queue is full or closed; the value is then untouched.
  bool try_push(T& value) {
    {
      std::lock_guard lock(mutex_);
      if (closed_ || size_ == slots_.size()) return false;
      slots_[(head_ + size_++) % slots_.size()] = std::move(value);
    }
    not_empty_.notify_one();
    return true;
  }
  // Waits for room. False when closed or the deadline passed.
  bool push(T value, Deadline deadline) {
    {
      std::unique_lock lock(mutex_);
      if (!not_full_.wait_until(lock, deadline.when(), [&] { return closed_ || size_ < slots_.size(); }))
        return false;
      if (closed_) return false;
      slots_[(head_ + size_++) % slots_.size()] = std::move(value);
    }
    not_empty_.notify_one();
    return true;
  }
  std::optional<T> try_pop() {
    std::unique_lock lock(mutex_);
    return take(lock);
  }
  // Waits for a value; nothing when closed and empty, or when the deadline passed.
  std::optional<T> pop(Deadline deadline) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_until(lock, deadline.when(), [&] { return closed_ || size_ > 0; });
    return take(lock);
  }
  void close() {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return size_;
  }
  bool closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  std::optional<T> take(std::unique_lock<std::mutex>& lock) {
    if (size_ == 0) return std::nullopt;
    std::optional<T> value(std::move(slots_[head_]));
    head_ = (head_ + 1) % slots_.size();
    --size_;
    lock.unlock();
    not_full_.notify_one();
    return value;
  }

  mutable std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::vector<T> slots_;
  size_t head_ = 0;
  size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace llm_dist
