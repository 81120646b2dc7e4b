// StepInputs: what a step's kernels read. The host packs it into one of N pinned buffers, which is copied in
// stream order and in one piece: preparing step t + 1 never overwrites what step t still reads. Device
// addresses depend on the padded sizes alone, so that a graph captured for a size replays with any step of
// it.
#pragma once

#include <memory>
#include <vector>

#include "kernels/sample.h"
#include "parallel/step_view.h"
#include "src/device/backend.h"
#include "src/engine/engine_options.h"
#include "src/sched/mirror.h"
#include "src/sched/step_plan.h"

namespace llm_dist::engine {

// A prepared step. Tensors are device views.
struct PreparedStep {
  uint64_t step = 0;
  parallel::StepView view;    // without kv
  Tensor token_slots;         // i32 [num_tokens]
  Tensor new_slots;           // i32 [num_new]: prompt tokens that the history does not have yet
  Tensor new_positions;       // i32 [num_new]
  Tensor new_tokens;          // i32 [num_new]
  Tensor sample_rows_params;  // u8 [num_samples, sizeof(SampleRow)]
  Tensor rule_words;          // i32 [num_rule_words], of SampleRow::rules
  Tensor sample_slots;        // i32 [num_samples]
  Tensor sample_positions;    // i32 [num_samples]
  Tensor kept_slots;  // the same two where tokens return over a pipeline, until step t + N is prepared
  Tensor kept_positions;
  int64_t num_real_samples = 0;
  bool greedy_only = true;  // every row greedy, without penalties, rules and log-probabilities
  bool decode_only = true;
};

class StepInputs {
 public:
  static Result<std::unique_ptr<StepInputs>> create(device::Backend& backend, const EngineOptions& options);
  static int64_t device_bytes(const EngineOptions& options);

  // Stages the plan, which `mirror` has applied already, and issues the copies to `stream`. bucket: when not
  // 0, the step is one of decodes and is padded to as many sequences.
  Result<PreparedStep> prepare(const sched::StepPlan& plan,
                               const sched::Mirror& mirror,
                               device::Stream& stream,
                               int64_t bucket = 0);
  // A prompt of padding alone, of so many rows: it runs through every layer and writes to no cache.
  Result<PreparedStep> prepare_padding(int64_t tokens, const sched::Mirror& mirror, device::Stream& stream);

 private:
  // Rows of each kind, padding included.
  struct Counts {
    int64_t tokens = 0;
    int64_t sequences = 0;
    int64_t samples = 0;
    int64_t new_tokens = 0;
    int64_t rule_words = 0;
  };
  // Offsets of each array within one buffer, the same on host and device.
  struct Offsets {
    int64_t token_slots, positions, kv_slots, query_starts, context_lens, sample_rows, sample_slots,
        sample_positions, sample_params, block_tables, new_slots, new_positions, new_tokens, rule_words,
        bytes;
  };
  struct Staging {
    device::Buffer buffer;
    std::unique_ptr<device::Event> copied;
  };
  static Counts most(const EngineOptions& options);
  static Offsets layout_of(const EngineOptions& options, const Counts& counts);

  StepInputs(device::Backend& backend, const EngineOptions& options);
  template <typename T>
  T* host(int64_t offset) {
    return reinterpret_cast<T*>(staging_->buffer.data() + offset);
  }
  Counts count(const sched::StepPlan& plan, const sched::Mirror& mirror, int64_t bucket) const;
  Result<PreparedStep> stage(const sched::StepPlan& plan,
                             const sched::Mirror& mirror,
                             device::Stream& stream,
                             const Counts& counts,
                             int64_t max_query_len);
  void remember_tokens(const sched::StepPlan& plan);
  void stage_run(const sched::SlotRun& run, const sched::Mirror& mirror);
  void stage_new_tokens(const sched::SlotRun& run, const sched::Mirror::Slot& slot);
  void stage_sample(const sched::SlotRun& run, const sched::Mirror::Slot& slot);
  void stage_scores(const sched::SlotRun& run, const sched::Mirror::Slot& slot);
  // token: row of the step whose logits these are; history_slot: where what it yields is written, −1:
  // nowhere.
  void add_row(const kernels::SampleRow& row, int64_t token, int32_t history_slot);
  void stage_rules(const sched::Mirror::Slot& slot, kernels::SampleRow& row);
  void pad();
  void view_inputs();
  void keep_sample_index(uint64_t step, device::Stream& stream);

  EngineOptions options_;
  int64_t max_blocks_;
  device::Buffer device_;
  device::Buffer token_ids_;
  std::vector<device::Buffer> sample_index_;  // one a step in flight: sampled tokens may return much later
  std::vector<Staging> stagings_;
  Staging* staging_ = nullptr;
  std::vector<int32_t>
      known_tokens_;  // [max_num_seqs, max_model_len]: what plans brought, until it is staged
  PreparedStep prepared_;
  Counts counts_;    // of the step being prepared
  Offsets offsets_;  // likewise
  int64_t num_tokens_ = 0;
  int64_t num_sequences_ = 0;
  int64_t num_samples_ = 0;
  int64_t num_new_ = 0;
  int64_t num_rule_words_ = 0;
};

}  // namespace llm_dist::engine
