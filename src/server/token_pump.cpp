#include "src/server/token_pump.h"

#include <pthread.h>

#include "src/base/log.h"

namespace llm_dist::server {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);

void fail_alone(Generation& generation, const std::exception& failure) noexcept {
  try {
    generation.fail(failure);
  } catch (const std::exception&) {
    generation.drop();
  }
}

// A generation whose step throws ends, and no other: nothing leaves the thread.
template <typename Step>
void guard(Generation& generation, Step step) noexcept {
  try {
    step();
  } catch (const std::exception& failure) {
    fail_alone(generation, failure);
  }
}

}  // namespace

TokenPump::TokenPump(size_t capacity)
    : queue_(std::make_shared<TokenQueue>(capacity)), next_tick_(Clock::now()) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "stream");
}

TokenPump::~TokenPump() { stop(); }

void TokenPump::stop() {
  queue_->close();
  if (thread_.joinable()) thread_.join();
}

bool TokenPump::begin(std::shared_ptr<Generation> generation) {
  TokenRecord record;
  record.kind = TokenRecord::Kind::kBegin;
  record.generation = std::move(generation);
  return queue_->push(record);
}

bool TokenPump::fail_all(const ApiError& error, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!failure_) failure_ = error;
  failing_ = true;
  TokenRecord wake;
  queue_->push(wake);
  return failure_applied_cv_.wait_until(lock, deadline.when(), [&] { return failure_applied_; });
}

void TokenPump::run() {
  while (!queue_->closed()) {
    if (auto record = queue_->pop(Deadline::at(next_tick_))) dispatch(*record);
    if (failing_) apply_failure();
    if (Clock::now() < next_tick_) continue;
    next_tick_ = Clock::now() + kTick;
    look_around();
  }
  for (const auto& generation : open_) guard(*generation, [&] { generation->abandon("cut_off"); });
  open_.clear();
  // Requests that were handed over and not begun: their writers answer when they are dropped.
  while (queue_->pop(Deadline::after_seconds(0))) {
  }
}

void TokenPump::dispatch(TokenRecord& record) {
  if (!record.generation) return look_around();
  Generation& generation = *record.generation;
  guard(generation, [&] {
    if (record.kind == TokenRecord::Kind::kToken) return generation.take(record);
    open_.insert(record.generation);
    generation.begin();
  });
  if (generation.done()) open_.erase(record.generation);
}

void TokenPump::look_around() {
  std::erase_if(open_, [](const std::shared_ptr<Generation>& generation) {
    guard(*generation, [&] { generation->check(); });
    return generation->done();
  });
  uint64_t num_spilled = queue_->num_spilled();
  if (num_spilled > num_spilled_seen_) {
    log_warning("sending lags behind the engine: {} tokens found the queue full",
                num_spilled - num_spilled_seen_);
  }
  num_spilled_seen_ = num_spilled;
}

void TokenPump::apply_failure() {
  std::lock_guard lock(mutex_);
  for (const auto& generation : open_) guard(*generation, [&] { generation->fail(*failure_); });
  open_.clear();
  failure_applied_ = true;
  failure_applied_cv_.notify_all();
}

}  // namespace llm_dist::server
