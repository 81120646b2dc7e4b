// Running prompts on an engine of this process, for commands without a server.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "src/engine/engine.h"

namespace llm_dist::launch {

// One sequence's outcome, filled by the step thread.
class LocalSequence : public engine::SequenceSink {
 public:
  // on_token: on the step thread, for each token.
  explicit LocalSequence(std::function<void(int32_t token)> on_token = {}) : on_token_(std::move(on_token)) {}
  void on_generated(const engine::Generated& generated) override;

  // Waits for the end; the error it ended with, if any.
  Status wait();
  // Waits until there are more than `known` tokens, for a while at most. Whether it has ended.
  bool wait_for_more(size_t known, Duration at_most);
  std::vector<int32_t> tokens_after(size_t known) const;
  std::vector<int32_t> tokens() const;
  sched::FinishReason finish() const;
  // now_ns() of each token.
  std::vector<int64_t> token_times_ns() const;

 private:
  std::function<void(int32_t)> on_token_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  bool wants_tokens_ = false;  // somebody waits for more than the end
  std::vector<int32_t> tokens_;
  std::vector<int64_t> times_;
  sched::FinishReason finish_ = sched::FinishReason::kNone;
  Status error_;
};

}  // namespace llm_dist::launch
