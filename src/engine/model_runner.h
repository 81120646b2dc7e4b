// ModelRunner: one rank executing step plans: prepare, forward, sample. Issues work and returns; nothing here
// waits for the device, except for a staging buffer that is still in use.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/pipeline.h"
#include "src/engine/engine_options.h"
#include "src/engine/graph_cache.h"
#include "src/engine/kv_cache.h"
#include "src/engine/sampler.h"
#include "src/engine/step_inputs.h"
#include "src/engine/step_meter.h"
#include "src/model/model.h"
#include "src/sched/mirror.h"

namespace llm_dist::engine {

// The lanes of a rank in a pipeline; absent ones are null.
struct PipelineLanes {
  std::unique_ptr<parallel::Lane> from_previous;
  std::unique_ptr<parallel::Lane> to_next;
  std::unique_ptr<parallel::Lane> tokens_to_first;   // last stage
  std::unique_ptr<parallel::Lane> tokens_from_last;  // first stage
};

struct RunnerParts {
  parallel::Context context;
  model::Model* model = nullptr;
  Sampler* sampler = nullptr;  // last stage
  KvCache* kv_cache = nullptr;
  PipelineLanes* lanes = nullptr;
  device::Backend* backend = nullptr;
  int64_t hidden_size = 0;
  EngineHooks hooks;
};

class ModelRunner {
 public:
  static Result<std::unique_ptr<ModelRunner>> create(const RunnerParts& parts, const EngineOptions& options);
  static int64_t history_bytes(const EngineOptions& options);

  // Runs one prompt of `tokens` rows of padding through the layers: what is done the first time only is done
  // then. Collective over the tensor group, and before the first step.
  Status warm_up(int64_t tokens);
  // Runs a decode step of so many sequences on padding alone, likewise.
  Status warm_up_decodes(int64_t sequences);
  // Captures the decode steps that EngineOptions::graph_sizes asks for, the largest first, each once it has
  // run on padding alone. Collective over the tensor group, and before the first step.
  Status capture_graphs();

  // Issues one step.
  Status execute(const sched::StepPlan& plan);

  // First stage: the records of step `step`'s samples, in plan order; waits until every stage has run it.
  // Steps are collected in order, each once, and before max_steps_in_flight more are executed. The span is
  // valid until then.
  Result<std::span<const kernels::SampleRecord>> collect(uint64_t step, Deadline deadline);
  // Whether collect(step) would not wait.
  bool complete(uint64_t step) const;

  // The first error of any of its streams, or ok.
  Status poll();
  // Waits until everything issued has run, or has been skipped after an error, which it returns.
  Status drain(Deadline deadline);
  const sched::Mirror& mirror() const { return mirror_; }
  StepMeter& meter() { return *meter_; }  // for the thread that executes

 private:
  // A step in flight, as the first stage remembers it.
  struct InFlight {
    uint64_t step = 0;
    int64_t num_real_samples = 0;
    uint64_t transfer = 0;  // number on the token lane
    bool returns = false;   // sampled tokens come over it, not only word that the step has run
    bool applied = false;   // and stand in the history
    Tensor slots;
    Tensor positions;
    device::Buffer results;  // pinned SampleRecords
    std::unique_ptr<device::Event> done;
  };

  ModelRunner(const RunnerParts& parts, const EngineOptions& options);
  Status allocate();
  InFlight& in_flight(uint64_t step) { return ring_[step % ring_.size()]; }
  const InFlight& in_flight(uint64_t step) const { return ring_[step % ring_.size()]; }

  // The graphs' size for the plan; 0: it is issued anew.
  int64_t bucket_of(const sched::StepPlan& plan) const;
  Status capture(int64_t bucket);
  Result<PreparedStep> prepare(const sched::StepPlan& plan, int64_t bucket);
  void take_history(const sched::StepPlan& plan, const PreparedStep& step);
  void receive_activations(const PreparedStep& step);
  void apply_returned_tokens(uint64_t through_step);
  // Layers, from the history or what was received, to logits (last stage, if anything is sampled) or what
  // leaves.
  Tensor forward(const PreparedStep& step);
  Result<Tensor> run_padding(PreparedStep& step);  // waits for it; what forward() returned
  // Tokens of `logits`, into the history; their records.
  Tensor sample(const Tensor& logits, const PreparedStep& step);
  Tensor records_of(const Tensor& logits, const PreparedStep& step, int64_t bucket);  // last stage
  void hand_over(const Tensor& records, const PreparedStep& step);
  void note_begin(const PreparedStep& step);
  void note_work_end();
  void return_tokens(const PreparedStep& step);
  // The compute stream waits for a transfer; the view of it.
  Tensor wait_for(const char* what, parallel::Lane& lane, uint64_t transfer, int64_t rows);
  void scatter(const Tensor& records, const Tensor& slots, const Tensor& positions);
  std::vector<device::Stream*> streams() const;  // this rank's, the one that computes first
  device::Stream& stream() const { return parts_.context.ops->stream(); }
  const parallel::Mesh& mesh() const { return parts_.context.mesh; }

  RunnerParts parts_;
  EngineOptions options_;
  sched::Mirror mirror_;
  GraphCache graphs_;
  std::unique_ptr<StepInputs> inputs_;
  std::unique_ptr<StepMeter> meter_;
  device::Buffer history_buffer_;
  Tensor history_;  // i32 [max_num_seqs, max_model_len]
  std::vector<InFlight> ring_;
  uint64_t applied_through_ = 0;
};

}  // namespace llm_dist::engine
