#include "launch/local_text.h"

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
  if (finish_ != sched::FinishReason::kNone) done_.notify_all();
}

Status LocalSequence::wait() {
  // A step that never ends is the engine's to notice: it has the deadline.
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return finish_ != sched::FinishReason::kNone; });
  return error_;
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
