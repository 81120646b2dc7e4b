// TokenPump: the queue between the step thread and the clients, and the stream thread that empties it:
// detokenizes, matches stop strings, renders, writes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

#include "src/server/api_error.h"
#include "src/server/generation.h"
#include "src/server/token_queue.h"

namespace llm_dist::server {

class TokenPump {
 public:
  // `capacity`: tokens that may wait for the stream thread without an allocation.
  explicit TokenPump(size_t capacity);
  ~TokenPump();  // stop()

  const std::shared_ptr<TokenQueue>& queue() const { return queue_; }
  // Hands over a new generation. False after stop(). Any thread.
  bool begin(std::shared_ptr<Generation> generation);
  // Ends every generation, and each later one, with that error. False when that was not done by the deadline.
  // Any thread but the stream thread.
  bool fail_all(const ApiError& error, Deadline deadline);
  // Abandons what is in progress and ends the thread.
  void stop();

 private:
  void run();
  void dispatch(TokenRecord& record);
  void look_around();
  void apply_failure();

  std::shared_ptr<TokenQueue> queue_;                     // sinks hold it too
  std::unordered_set<std::shared_ptr<Generation>> open_;  // stream thread only
  TimePoint next_tick_;
  uint64_t num_spilled_seen_ = 0;
  std::mutex mutex_;
  std::condition_variable failure_applied_cv_;
  std::optional<ApiError> failure_;
  bool failure_applied_ = false;
  std::atomic<bool> failing_{false};
  std::thread thread_;
};

}  // namespace llm_dist::server
