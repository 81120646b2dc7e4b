// Decides what runs in each step: continuous batching over slots and KV blocks, decode first, then prompt
// chunks; with look-ahead (step t+1 is scheduled before step t has retired) and micro-batches for pipeline
// stages. One thread. In decode steady state schedule() and retire() allocate nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "src/base/status.h"
#include "src/sched/block_pool.h"
#include "src/sched/mirror.h"
#include "src/sched/request.h"
#include "src/sched/scheduler_options.h"
#include "src/sched/sequence.h"
#include "src/sched/sequence_queue.h"
#include "src/sched/step_builder.h"
#include "src/sched/step_plan.h"

namespace llm_dist::sched {

// One token of one sequence, and whether it was the last.
struct TokenEvent {
  SequenceId id = 0;
  int32_t token = -1;        // the end token too, with kStop; -1: only a finish (never from retire())
  int32_t sample_index = 0;  // among the step's rows (StepPlan::num_samples), in plan order
  FinishReason finish = FinishReason::kNone;
  bool first = false;            // the sequence's first token
  int32_t prompt_position = -1;  // from 1 on: no new token, the score of the prompt's token there
  TimePoint started;             // when the sequence's first step was scheduled
};

struct SchedulerStats {
  int32_t num_running = 0;
  int32_t num_waiting = 0;  // preempted sequences included
  // Of those, the ones that have never run, and their prompts' tokens.
  int32_t num_unstarted = 0;
  int64_t unstarted_tokens = 0;
  int32_t num_free_blocks = 0;
  int32_t num_total_blocks = 0;
  int64_t allocated_kv_tokens = 0;  // token slots in allocated blocks
  int64_t used_kv_tokens = 0;       // of those, the ones that hold a token once the steps in flight have run
  uint64_t num_preemptions = 0;
  uint64_t prompt_tokens_total = 0;      // of sequences that have started
  uint64_t generation_tokens_total = 0;  // delivered by retire()
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);  // validate(options) must be ok

  // invalid_argument when the request can never run (the message holds the numbers); resource_exhausted when
  // max_num_waiting sequences wait. max_tokens is clipped by max_model_len.
  Status add(SequenceRequest request);
  // False when the id is unknown or has finished. No event follows; its tokens in flight are dropped.
  bool cancel(SequenceId id);

  // Fills `plan` with the next step. False when nothing can be scheduled now: no work, max_steps_in_flight
  // reached, or a step in flight must retire first.
  bool schedule(StepPlan& plan);
  // Step `step`, the oldest in flight, has run; `tokens` holds one token per row (StepPlan::num_samples), in
  // plan order.
  // `events` is overwritten: the tokens to deliver, in plan order.
  void retire(uint64_t step, std::span<const int32_t> tokens, std::vector<TokenEvent>& events);

  SchedulerStats stats() const;
  uint64_t last_step() const { return step_; }  // scheduled
  bool idle() const { return sequences_.empty() && steps_in_flight() == 0; }
  int steps_in_flight() const { return static_cast<int>(step_ - retired_step_); }
  const SchedulerOptions& options() const { return options_; }

 private:
  struct Touch {
    Sequence* sequence;
    bool samples;
    int32_t num_scores;
    int32_t first_scored;  // position
  };

  Status check_request(const SequenceRequest& request) const;
  int32_t blocks_for(int32_t num_tokens) const {
    return (num_tokens + options_.block_size - 1) / options_.block_size;
  }

  void classify();
  int32_t decode_limit() const;
  std::span<Sequence* const> order_decodes();
  void add_decodes(std::span<Sequence* const> decodes);
  void add_prefills();
  void admit_waiting();
  int32_t chunk_of(const Sequence& sequence, int32_t remaining, int32_t rows) const;
  bool can_admit(const Sequence& sequence) const;
  void start(Sequence& sequence);
  bool add_run(Sequence& sequence, int32_t count);
  bool make_room(const Sequence& sequence, int32_t num_new_blocks);
  void preempt(Sequence& victim);
  void publish(StepPlan& plan);
  void follow(const StepBuilder::Run& run);

  void deliver_scores(const Touch& touch,
                      std::span<const int32_t> tokens,
                      int32_t sample_index,
                      std::vector<TokenEvent>& events);
  TokenEvent deliver(Sequence& sequence, int32_t token, int32_t sample_index);
  bool in_flight(const Sequence& sequence) const { return sequence.last_step > retired_step_; }
  void leave_running(Sequence& sequence, SequenceState state);
  void end(Sequence& sequence);
  void give_back(Sequence& sequence);
  void leave_unstarted(Sequence& sequence);
  void settle(Sequence& sequence);

  SchedulerOptions options_;
  BlockPool pool_;
  Mirror mirror_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  WaitingQueue waiting_;
  RunningSet running_;
  StepBuilder builder_;

  std::vector<int32_t> free_slots_;
  std::vector<int32_t> ended_slots_;  // free, and not yet announced
  std::vector<uint64_t>
      slot_sample_step_;             // [max_num_seqs]: last step that sampled for the slot, whoever held it
  std::vector<Sequence*> decodes_;   // scratch of schedule()
  std::vector<Sequence*> prefills_;  // scratch of schedule()
  std::vector<std::vector<Touch>> touches_;  // [max_steps_in_flight]: the runs of the steps in flight
  int32_t draining_blocks_ = 0;              // come free without a preemption as steps retire
  int32_t num_final_ = 0;
  int32_t num_preempting_ = 0;
  int32_t num_unstarted_ = 0;
  int64_t unstarted_tokens_ = 0;
  bool out_of_blocks_ = false;  // of the step being scheduled: somebody had to wait, nobody is admitted
  int64_t used_kv_tokens_ = 0;
  uint64_t step_ = 0;
  uint64_t retired_step_ = 0;
  uint64_t next_order_ = 0;
  uint64_t num_preemptions_ = 0;
  uint64_t prompt_tokens_total_ = 0;
  uint64_t generation_tokens_total_ = 0;
};

}  // namespace llm_dist::sched
