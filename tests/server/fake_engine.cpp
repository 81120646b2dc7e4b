#include "tests/server/fake_engine.h"

#include <algorithm>

namespace llm_dist::server {

FakeEngine::FakeEngine() {
  thread_ = std::thread([this] { run(); });
}

FakeEngine::~FakeEngine() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<sched::SequenceId> FakeEngine::submit(sched::SequenceRequest request,
                                             std::shared_ptr<engine::SequenceSink> sink) {
  if (submissions_until_throw_-- == 0) throw std::bad_alloc();
  std::lock_guard lock(mutex_);
  if (!refusal_.ok()) return refusal_;
  request.id = next_id_++;
  requests_.push_back(request);
  auto& script = scripts_[request.sampling.choice % scripts_.size()];
  running_.emplace(request.id, Running{.request = request, .sink = std::move(sink), .script = script});
  changed_.notify_all();
  return request.id;
}

void FakeEngine::cancel(sched::SequenceId id) {
  if (cancels_that_throw_-- > 0) throw std::bad_alloc();
  std::lock_guard lock(mutex_);
  num_cancelled_ += running_.erase(id);
}

engine::EngineStats FakeEngine::stats() {
  std::lock_guard lock(mutex_);
  return stats_;
}

bool FakeEngine::idle() {
  std::lock_guard lock(mutex_);
  return running_.empty();
}

void FakeEngine::set_scripts(std::vector<std::vector<int32_t>> scripts) {
  std::lock_guard lock(mutex_);
  scripts_ = std::move(scripts);
}

void FakeEngine::set_logprobs(std::vector<float> logprobs) {
  std::lock_guard lock(mutex_);
  logprobs_ = std::move(logprobs);
}

void FakeEngine::pause() {
  std::lock_guard lock(mutex_);
  paused_ = true;
}

void FakeEngine::pause_after(int rounds) {
  std::lock_guard lock(mutex_);
  rounds_left_ = rounds;
}

void FakeEngine::resume() {
  std::lock_guard lock(mutex_);
  paused_ = false;
  changed_.notify_all();
}

void FakeEngine::refuse(Status status) {
  std::lock_guard lock(mutex_);
  refusal_ = std::move(status);
}

void FakeEngine::fail_running(const Status& status) {
  std::lock_guard lock(mutex_);
  for (auto& [id, running] : running_) {
    running.sink->on_generated({.id = id, .finish = sched::FinishReason::kError, .error = &status});
  }
  running_.clear();
}

void FakeEngine::set_stats(const engine::EngineStats& stats) {
  std::lock_guard lock(mutex_);
  stats_ = stats;
}

std::vector<sched::SequenceRequest> FakeEngine::requests() {
  std::lock_guard lock(mutex_);
  return requests_;
}

size_t FakeEngine::num_running() {
  std::lock_guard lock(mutex_);
  return running_.size();
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || (!paused_ && !running_.empty()); });
    if (stopping_) return;
    play_round();
    if (rounds_left_ > 0 && --rounds_left_ == 0) paused_ = true;
    if (round_ms_ > 0) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(round_ms_));
      lock.lock();
    }
  }
}

void FakeEngine::play_round() {
  ++stats_.steps;
  stats_.last_progress_ns = now_ns();
  for (auto it = running_.begin(); it != running_.end();) {
    it = step(it->first, it->second) ? std::next(it) : running_.erase(it);
  }
}

namespace {

// The token itself is the likeliest, then the ones with the next ids.
struct Tops {
  Tops(int32_t token, int32_t num_logprobs, float logprob)
      : count(static_cast<size_t>(std::max(0, num_logprobs))) {
    for (size_t i = 0; i < count; ++i) {
      ids[i] = token + static_cast<int32_t>(i);
      logprobs[i] = logprob - static_cast<float>(i);
    }
  }
  size_t count;
  std::array<int32_t, 20> ids;
  std::array<float, 20> logprobs;
};

}  // namespace

// A quarter less for each position.
void FakeEngine::score_prompt(sched::SequenceId id, const Running& running) {
  const sched::SequenceRequest& request = running.request;
  for (size_t i = 1; i < request.prompt.size(); ++i) {
    const float logprob = -0.25f * static_cast<float>(i);
    const Tops tops(request.prompt[i], request.sampling.num_prompt_logprobs, logprob);
    running.sink->on_generated({.id = id,
                                .token = request.prompt[i],
                                .prompt_position = static_cast<int32_t>(i),
                                .logprob = logprob,
                                .top_ids = {tops.ids.data(), tops.count},
                                .top_logprobs = {tops.logprobs.data(), tops.count}});
  }
}

// One token; false after the last.
bool FakeEngine::step(sched::SequenceId id, Running& running) {
  const sched::SamplingParams& sampling = running.request.sampling;
  if (running.next == 0 && sampling.num_prompt_logprobs >= 0) score_prompt(id, running);
  int32_t token = running.script[std::min(running.next++, running.script.size() - 1)];
  if (token < 0) token = sampling.end_token_ids.empty() ? 0 : sampling.end_token_ids.front();
  bool is_end = std::count(sampling.end_token_ids.begin(), sampling.end_token_ids.end(), token) > 0;
  auto finish = sched::FinishReason::kNone;
  if (static_cast<int32_t>(running.next) >= sampling.max_tokens) finish = sched::FinishReason::kLength;
  if (is_end) finish = sched::FinishReason::kStop;
  const float logprob = logprobs_[sampling.choice % logprobs_.size()];
  const Tops tops(token, sampling.num_logprobs, logprob);
  running.sink->on_generated({.id = id,
                              .token = token,
                              .logprob = logprob,
                              .top_ids = {tops.ids.data(), tops.count},
                              .top_logprobs = {tops.logprobs.data(), tops.count},
                              .finish = finish,
                              .started = running.started});
  return finish == sched::FinishReason::kNone;
}

}  // namespace llm_dist::server
