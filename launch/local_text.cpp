#include "launch/local_text.h"

#include <algorithm>

namespace llm_dist::launch {

void LocalSequence::on_generated(const engine::Generated& generated) {
  if (generated.token >= 0 && on_token_) on_token_(generated.token);
  std::lock_guard lock(mutex_);
  if (generated.token >= 0) {
    tokens_.push_back(generated.token);
    times_.push_back(now_ns());
  }
  if (generated.error != nullptr) error_ = *generated.error;
  finish_ = generated.finish;
  if (finish_ != sched::FinishReason::kNone || wants_tokens_) done_.notify_all();
}

Status LocalSequence::wait() {
  // A step that never ends is the engine's to notice: it has the deadline.
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return finish_ != sched::FinishReason::kNone; });
  return error_;
}

bool LocalSequence::wait_for_more(size_t known, Duration at_most) {
  std::unique_lock lock(mutex_);
  wants_tokens_ = true;
  auto ended = [&] { return finish_ != sched::FinishReason::kNone; };
  done_.wait_for(lock, at_most, [&] { return ended() || tokens_.size() > known; });
  wants_tokens_ = false;
  return ended();
}

std::vector<int32_t> LocalSequence::tokens_after(size_t known) const {
  std::lock_guard lock(mutex_);
  return {tokens_.begin() + static_cast<ptrdiff_t>(std::min(known, tokens_.size())), tokens_.end()};
}

std::vector<int32_t> LocalSequence::tokens() const {
  std::lock_guard lock(mutex_);
  return tokens_;
}

std::vector<int64_t> LocalSequence::token_times_ns() const {
  std::lock_guard lock(mutex_);
  return times_;
}

sched::FinishReason LocalSequence::finish() const {
  std::lock_guard lock(mutex_);
  return finish_;
}

}  // namespace llm_dist::launch
