// FakeEngine: an EnginePort that emits scripted tokens from a thread of its own, one of each sequence a
// round.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "src/server/engine_port.h"

namespace llm_dist::server {

class FakeEngine final : public EnginePort {
 public:
  FakeEngine();
  ~FakeEngine() override;

  Result<sched::SequenceId> submit(sched::SequenceRequest request,
                                   std::shared_ptr<engine::SequenceSink> sink) override;
  void cancel(sched::SequenceId id) override;
  engine::EngineStats stats() override;
  bool idle() override;

  // What sequences yield: script i for choice i modulo the number of scripts; −1 stands for the end token of
  // the request. Ended by max_tokens if that comes first; a script that ends goes on with its last token.
  void set_scripts(std::vector<std::vector<int32_t>> scripts);
  // Log-probability of each token of choice i, modulo their number; −0.5 at first.
  void set_logprobs(std::vector<float> logprobs);
  // No tokens until resume().
  void pause();
  // The same, after this many rounds that yielded tokens.
  void pause_after(int rounds);
  void resume();
  void refuse(Status status);  // later submissions; ok: accept again
  // Run out of memory: the submission after so many, and as many calls of cancel().
  void throw_after_submissions(int submissions) { submissions_until_throw_ = submissions; }
  void throw_from_cancels(int cancels) { cancels_that_throw_ = cancels; }
  void fail_running(const Status& status);  // as an engine that dies
  void set_round_ms(int milliseconds) { round_ms_ = milliseconds; }
  void set_stats(const engine::EngineStats& stats);

  std::vector<sched::SequenceRequest> requests();  // all that were submitted
  size_t num_running();
  size_t num_cancelled() const { return num_cancelled_; }

 private:
  struct Running {
    sched::SequenceRequest request;
    std::shared_ptr<engine::SequenceSink> sink;
    std::vector<int32_t> script;
    size_t next = 0;
    TimePoint started = Clock::now();
  };

  void run();
  void play_round();
  bool step(sched::SequenceId id, Running& running);
  void score_prompt(sched::SequenceId id, const Running& running);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<sched::SequenceId, Running> running_;
  std::vector<std::vector<int32_t>> scripts_{{-1}};
  std::vector<float> logprobs_{-0.5f};
  std::vector<sched::SequenceRequest> requests_;
  Status refusal_;
  engine::EngineStats stats_;
  sched::SequenceId next_id_ = 1;
  bool paused_ = false;
  int rounds_left_ = -1;  // until it pauses; negative: it does not
  bool stopping_ = false;
  std::atomic<int> round_ms_{0};
  std::atomic<int> submissions_until_throw_{-1};
  std::atomic<int> cancels_that_throw_{0};
  std::atomic<size_t> num_cancelled_{0};
  std::thread thread_;
};

}  // namespace llm_dist::server
