// The least time that a step, and a prompt phase, could take: arithmetic over what was measured in the same
// run.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace llm_dist::launch {

// What one rank of a stage has to do.
struct StageWork {
  double weight_bytes = 0;        // that every decode step reads: not the rows of the embedding it looks up
  double kv_bytes_per_token = 0;  // of a sequence's context
  double layer_flops = 0;         // of the layers' products, for one token
  double head_flops = 0;          // of the head's, likewise; 0 where there is none
  double unread_flops = 0;        // of layer_flops, what a prompt's token is spared (parallel/sampled_rows.h)
  int64_t layers = 0;
};

// What this rank's device and its tensor group can do.
struct Ceilings {
  double read_bytes_per_second = 0;  // device memory
  // On this rank's share of the widest layer, with weights as the layers hold them; 0: not measured.
  double gemm_flops_per_second = 0;
  double head_flops_per_second = 0;          // the same with weights as the head holds them
  std::map<int, double> all_reduce_seconds;  // of rows × hidden activations, by rows; 0 in a group of one
  std::vector<StageWork> stages;             // as many as there are
};

// Decodes of a batch in `micro_batches` steps that follow each other through the stages.
struct DecodeShape {
  int batch = 1;
  int64_t context = 0;  // tokens of a sequence
  int micro_batches = 1;

  int steps() const { return batch < micro_batches ? batch : micro_batches; }
  int rows_of_step() const { return (batch + steps() - 1) / steps(); }
};

// The least time until every sequence has another token. Of a stage's step: what is read once, or multiplied,
// whichever takes longer, then the KV cache, then two all-reduces a layer. A step goes through all stages one
// after the other; the slowest one is never done with more than one step at a time.
struct StepFloor {
  double seconds = 0;
  double all_reduce_seconds = 0;  // of these
};
StepFloor decode_floor(const Ceilings& ceilings, const DecodeShape& shape);

// The least time of the products of a prompt phase of so many tokens, `step_tokens` a step; 0 when not known.
// The slowest stage has all of them; before its first step and behind its last one the others have theirs.
double prefill_floor(const Ceilings& ceilings, int64_t num_tokens, int64_t step_tokens);

}  // namespace llm_dist::launch
