// What this rank's device and its tensor group can do, measured in the run that is to be compared with it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "launch/rank_process.h"

namespace llm_dist::launch {

struct Ceilings {
  double read_bytes_per_second = 0;  // device memory
  // On this rank's share of the widest layer, with weights as the layers hold them; 0: not measured.
  double gemm_flops_per_second = 0;
  double head_flops_per_second = 0;          // the same with weights as the head holds them
  std::map<int, double> all_reduce_seconds;  // of batch × hidden activations, by batch; 0 in a group of one
};

// For people, without an end of line; and as a JSON object.
std::string describe(const Ceilings& ceilings);
std::string ceilings_json(const Ceilings& ceilings);

// Bytes of this rank's weights that every decode step reads: not the rows of the embedding it looks up.
double step_weight_bytes(RankProcess& process);

// Collective: all ranks of the world, after loading and before any of them runs steps.
Result<Ceilings> measure_ceilings(RankProcess& process, const std::vector<int>& batches);

// The least time of a decode step on this rank's stage: what is read once, or multiplied, whichever takes
// longer, then the KV cache of `context` tokens a sequence, then two all-reduces a layer.
struct StepFloor {
  double seconds = 0;
  double all_reduce_seconds = 0;  // of these
};
StepFloor decode_floor(RankProcess& process, const Ceilings& ceilings, int batch, int64_t context);
// The least time of the products of a prompt phase of so many tokens; 0 when not known.
double prefill_floor(RankProcess& process, const Ceilings& ceilings, int64_t num_tokens);

}  // namespace llm_dist::launch
