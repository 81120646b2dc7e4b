// StepWatch: notices an engine that has work and makes no progress. A thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "src/server/engine_port.h"

namespace llm_dist::server {

// The rule, without the clock: how long the engine has been busy without ending a step.
class StallRule {
 public:
  explicit StallRule(double min_seconds) : min_seconds_(min_seconds) {}
  // Whether it is too long by now: more than max(min_seconds, 20 × what a step of that size may take).
  bool stalled(const engine::EngineStats& stats, bool idle, int64_t now_ns);

 private:
  double min_seconds_;
  int64_t busy_since_ns_ = 0;  // 0: idle when last seen
};

class StepWatch {
 public:
  // `on_hung`: once, on this object's thread.
  StepWatch(EnginePort& engine, double min_seconds, std::function<void()> on_hung);
  ~StepWatch();  // stop()
  bool hung() const { return hung_; }
  // From on_hung it only asks the thread to end; the destructor then waits for it.
  void stop();

 private:
  void run();

  EnginePort& engine_;
  StallRule rule_;
  std::function<void()> on_hung_;
  std::atomic<bool> hung_{false};
  std::mutex mutex_;
  std::condition_variable stop_cv_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace llm_dist::server
