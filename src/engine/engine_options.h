// What an engine is told: the flags of `serve` that concern it, resolved to numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "parallel/mesh.h"
#include "src/base/dtype.h"
#include "src/base/weight.h"
#include "src/sched/step_plan.h"

namespace llm_dist::engine {

class StepProfile;
class StepTrace;

struct EngineOptions {
  parallel::Layout layout;
  std::vector<int64_t> layer_split;  // layers of each stage; empty: about as many each
  DType dtype = DType::kF32;         // of activations
  DType kv_dtype = DType::kF32;      // of the cache
  // What linear layers' weights are held in, whatever the checkpoint has; none: as it has them, where the
  // device takes that.
  std::optional<WeightScheme> quantization;
  int64_t max_model_len = 0;
  int64_t block_size = 16;
  int64_t max_num_seqs = 64;
  int64_t max_num_batched_tokens = 2048;
  int64_t num_blocks = 0;      // 0: as many as kv_cache_bytes holds
  int64_t kv_cache_bytes = 0;  // on this rank
  bool enable_chunked_prefill = true;
  bool async_scheduling = true;
  bool priority_scheduling = false;
  // Batch sizes that decode steps are padded to and replayed as graphs at, ascending, each at most
  // max_decodes(); empty: every step is issued anew.
  std::vector<int64_t> graph_sizes;
  // Others whose steps' kernels are chosen as those of graphs are, by trying them at start, though they are
  // issued anew; ascending.
  std::vector<int64_t> tuned_sizes;
  int threads = 1;  // CPU ops
  kernels::LinearKernels linear_kernels = kernels::LinearKernels::kFastest;
  kernels::AttentionKernels attention_kernels = kernels::AttentionKernels::kFastest;
  bool persistent_kernels = true;  // for steps of one row, where a device has them
  bool row_teams = true;           // blocks share a row of logits, where a device has teams of them
  bool prune_last_layer = true;    // to the rows that are sampled (parallel/sampled_rows.h)
  bool autotune = true;            // kernels are chosen by timing them, where a device has several
  bool peer_memory = false;        // a tensor group's GPUs have some for each other (comm/p2p)
  bool peer_hand_off = false;      // and so have those of two stages
  bool deterministic = false;      // logits have the same bits alone and in any batch, chunk or replay
  double step_deadline_seconds = 600;
  int load_threads = 2;

  // Steps that the running sequences' decodes are dealt to, so that every stage has one at work.
  int num_micro_batches() const { return async_scheduling ? layout.pp : 1; }
  int64_t max_decodes() const {  // of one step
    return (max_num_seqs + num_micro_batches() - 1) / num_micro_batches();
  }
  // Steps issued and not yet collected: one in the plain loop; else one is scheduled while the others run.
  int max_steps_in_flight() const { return async_scheduling ? (layout.pp == 1 ? 2 : layout.pp + 1) : 1; }
  int64_t max_blocks_per_sequence() const { return (max_model_len + block_size - 1) / block_size; }
  // Rows of a step of so many tokens: a multiple of tp where it is sequence parallel.
  int64_t padded_step(int64_t tokens) const {
    return layout.is_sequence_parallel(tokens) ? round_up(tokens, layout.tp) : tokens;
  }
  // Rows that every rank's share of is equal.
  int64_t padded_tokens() const { return round_up(max_num_batched_tokens, layout.tp); }
  int64_t padded_samples() const { return round_up(max_num_seqs, layout.tp); }

  static int64_t round_up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
  }
};

// Hooks for tests, traces and the failure watch; all optional.
struct EngineHooks {
  kernels::OpObserver* observer = nullptr;
  StepTrace* trace = nullptr;
  StepProfile* profile = nullptr;  // told of steps; of their ops too where it is the observer
  std::function<void(const char* phase)> on_phase;  // static strings: "loading", "idle", …
  // Last stage, every step: this rank's vocabulary shard of the logits, f32 [num_samples, shard] in plan
  // order, empty where nothing is sampled; rows past the plan's samples are padding. Valid in `stream`'s
  // order until the next step.
  std::function<void(const sched::StepPlan& plan, const Tensor& logits, device::Stream& stream)> on_logits;
};

}  // namespace llm_dist::engine
