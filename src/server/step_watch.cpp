#include "src/server/step_watch.h"

#include <pthread.h>

#include <algorithm>

namespace llm_dist::server {

bool StallRule::stalled(const engine::EngineStats& stats, bool idle, int64_t now_ns) {
  if (idle) {
    busy_since_ns_ = 0;
    return false;
  }
  if (busy_since_ns_ == 0) busy_since_ns_ = now_ns;
  // Others may have taken most of the processor, or of its bandwidth, since that was seen.
  constexpr double kPatience = 20;
  double limit = std::max(min_seconds_, kPatience * stats.expected_step_seconds);
  int64_t since_ns = now_ns - std::max(busy_since_ns_, stats.last_progress_ns);
  return static_cast<double>(since_ns) * 1e-9 > limit;
}

StepWatch::StepWatch(EnginePort& engine, double min_seconds, std::function<void()> on_hung)
    : engine_(engine), rule_(min_seconds), on_hung_(std::move(on_hung)) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "step-watch");
}

StepWatch::~StepWatch() { stop(); }

void StepWatch::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_cv_.notify_all();
  if (thread_.joinable() && thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void StepWatch::run() {
  constexpr auto kPeriod = std::chrono::milliseconds(200);
  bool told = false;
  std::unique_lock lock(mutex_);
  while (!stop_cv_.wait_for(lock, kPeriod, [&] { return stopping_; })) {
    hung_ = rule_.stalled(engine_.stats(), engine_.idle(), now_ns());
    if (!hung_ || told) continue;
    told = true;
    lock.unlock();
    on_hung_();
    lock.lock();
  }
}

}  // namespace llm_dist::server
