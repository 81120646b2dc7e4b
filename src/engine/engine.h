// Engine: the step loop of rank 0, on a thread of its own: accept, schedule, publish, execute, collect. Other
// ranks run follow_plans().
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "comm/host/host_channel.h"
#include "src/base/bounded_queue.h"
#include "src/engine/engine_stats.h"
#include "src/engine/rank_book.h"
#include "src/engine/rank_engine.h"
#include "src/engine/sequence_sink.h"
#include "src/engine/step_pace.h"
#include "src/sched/scheduler.h"

namespace llm_dist::engine {

struct EngineLimits {
  int64_t max_queued_requests = 1024;  // submitted and never run so far
  int64_t max_queued_tokens = 0;       // of their prompts; 0: no limit. A single request may be longer
  double idle_poll_seconds = 0.2;      // how often a loop that waits looks for failures
};

class Engine {
 public:
  // `channel` may be null in a world of one rank. on_failure: once, on the step thread, and before
  // any sink hears of it: a peer's death shows here as a collective that failed, and who ends the process may
  // find the culprit first.
  static std::unique_ptr<Engine> start(RankEngine& rank,
                                       comm::HostChannel* channel,
                                       const EngineLimits& limits,
                                       const EngineHooks& hooks,
                                       std::function<void(const Status&)> on_failure);
  ~Engine();  // stop()

  // Takes the request (its id is set here) or says why not: invalid_argument (it can never run),
  // resource_exhausted (too many requests, or tokens of theirs, wait), unavailable (stopping or failed). Any
  // thread.
  Result<sched::SequenceId> submit(sched::SequenceRequest request, std::shared_ptr<SequenceSink> sink);
  // The sequence ends; its blocks are free once the steps in flight that touch it retire. No event follows.
  // Any thread.
  void cancel(sched::SequenceId id);

  EngineStats stats() const;  // any thread
  // Whether anything is running or waiting. Any thread.
  bool idle() const { return pending_.load() == 0; }
  // The loop ends after the steps in flight; running sequences get kError. Other ranks are told to end.
  void stop();

 private:
  struct Command {
    enum class Kind : uint8_t { kNone, kSubmit, kCancel } kind = Kind::kNone;
    sched::SequenceRequest request;
    std::shared_ptr<SequenceSink> sink;
  };
  // Sequences that have never run, and the tokens of their prompts.
  struct Backlog {
    int64_t requests = 0;
    int64_t tokens = 0;
  };
  struct Flight {
    uint64_t step = 0;
    int64_t tokens = 0;
    TimePoint issued;
  };

  Engine(RankEngine& rank,
         comm::HostChannel* channel,
         const EngineLimits& limits,
         const EngineHooks& hooks,
         std::function<void(const Status&)> on_failure);

  void run();
  Status loop();
  Status enter_queue(const sched::SequenceRequest& request);
  void leave_queue(const Backlog& left);
  void note_started();
  void accept();
  void apply(Command& command);
  Result<bool> issue_step();
  Status publish(const sched::StepPlan& plan);
  Status collect_oldest();
  Result<std::span<const kernels::SampleRecord>> wait_for_records(uint64_t step);
  double expected_step_seconds() const;
  void deliver(const sched::TokenEvent& event, std::span<const kernels::SampleRecord> records);
  void finish_all(const Status& status);
  void note_finished(sched::SequenceId id);
  Status wait_for_work();
  void update_stats();
  Status read_meters();
  Deadline step_deadline() const { return Deadline::after_seconds(rank_.options().step_deadline_seconds); }

  RankEngine& rank_;
  comm::HostChannel* channel_;
  EngineLimits limits_;
  EngineHooks hooks_;
  std::function<void(const Status&)> on_failure_;
  sched::Scheduler scheduler_;
  BoundedQueue<Command> commands_;
  std::unordered_map<sched::SequenceId, std::shared_ptr<SequenceSink>> sinks_;
  sched::StepPlan plan_;
  std::vector<std::byte> encoded_;
  std::vector<Flight> flights_;
  std::vector<int32_t> tokens_;
  std::vector<sched::TokenEvent> events_;
  std::atomic<uint64_t> next_id_{1};
  std::atomic<int64_t> pending_{0};  // submitted and not finished
  std::atomic<int64_t> queued_requests_{0};
  std::atomic<int64_t> queued_tokens_{0};
  Backlog unstarted_;  // what the scheduler holds of these two, when last seen
  std::atomic<bool> stopping_{false};
  std::atomic<bool> failed_{false};
  StatsBoard board_;
  StepPace pace_;
  RankBook book_;
  uint64_t meters_read_at_ = 0;  // step
  double active_seconds_ = 0;    // with steps in flight
  TimePoint active_since_;
  std::thread thread_;
};

sched::SchedulerOptions scheduler_options(const EngineOptions& options);

// Ranks other than 0: receives plans and executes them until rank 0 ends the world. `stop` is asked between
// plans.
Status follow_plans(RankEngine& rank, comm::HostChannel& channel, const std::function<bool()>& stop);

}  // namespace llm_dist::engine
