// Replica: a whole world of ranks in this process: thread communicators, a CPU backend of its own for each
// rank, the real host channel, RankEngine and Engine. What mpirun would start, without mpirun.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/thread/thread_world.h"
#include "kernels/cpu/cpu_ops.h"
#include "src/engine/engine.h"

namespace llm_dist::engine {

struct ReplicaOptions {
  EngineOptions engine;
  EngineLimits limits;
  const kernels::OpTable* ops = &kernels::cpu_ops();
  std::function<EngineHooks(int rank)> hooks;
  // Of each rank's streams (device::CpuBackendOptions::before_task): where tests inject delays.
  std::function<void(const std::string& stream, uint64_t task)> before_task;
  // Of another device than the CPU: each rank's backend and groups.
  std::function<Result<std::unique_ptr<device::Backend>>(int rank)> make_backend;
  std::function<Result<std::unique_ptr<comm::Communicator>>(comm::World& world,
                                                            std::span<const int> world_ranks,
                                                            const std::string& name,
                                                            const comm::GroupUse& use)>
      make_communicator;
  // No rank waits for another on the device before all have their memory: taking some waits for the device
  // itself, which ranks may share.
  bool memory_first = false;
};

// What one sequence yielded.
struct Output {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<int32_t> prompt_tokens;  // from position 1 on, where the request scores its prompt
  std::vector<float> prompt_logprobs;
  sched::FinishReason finish = sched::FinishReason::kNone;  // kNone: still running, or cancelled
  Status error;
  TimePoint finished;
};

// Collects one sequence's events; wait() from another thread.
class OutputSink : public SequenceSink {
 public:
  void on_generated(const Generated& generated) override;
  // False when the sequence has not ended in time.
  bool wait(double seconds);
  bool wait_for_tokens(size_t count, double seconds);
  Output output() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Output output_;
};

class Replica {
 public:
  // The first rank's error when any fails.
  static Result<std::unique_ptr<Replica>> start(const checkpoint::Checkpoint& checkpoint,
                                                ReplicaOptions options);
  ~Replica();  // stops the engine and joins every rank

  Engine& engine() { return *engine_; }
  RankEngine& rank(int index) { return *ranks_[static_cast<size_t>(index)]; }
  // Submits all at once and waits for all; a CHECK fails when that takes longer than a minute.
  std::vector<Output> generate(std::vector<sched::SequenceRequest> requests);
  // As a dying peer would: every communicator of every rank ends with `cause`.
  void abort(const Status& cause) { world_->abort(cause); }
  // Stops and joins; each rank's own end, in rank order.
  std::vector<Status> stop();
  bool failed() const { return failed_.load(); }

 private:
  explicit Replica(ReplicaOptions options);
  Status run_rank(int index, const checkpoint::Checkpoint& checkpoint);
  void note_ready(const Status& status);

  ReplicaOptions options_;
  std::unique_ptr<comm::ThreadWorld> world_;
  std::vector<std::unique_ptr<RankEngine>> ranks_;
  std::vector<Status> ends_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::thread> threads_;
  std::atomic<bool> failed_{false};

  std::mutex mutex_;
  std::condition_variable changed_;
  int num_ready_ = 0;
  Status setup_error_;
  bool stopping_ = false;
};

// A greedy request; `tag` stands in its seed, where greedy sampling leaves it alone.
sched::SequenceRequest greedy_request(std::vector<int32_t> prompt, int32_t max_tokens, uint64_t tag = 0);

}  // namespace llm_dist::engine
