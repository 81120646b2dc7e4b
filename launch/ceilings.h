// What this rank's device and its tensor group can do, measured in the run that is to be compared with it.
#pragma once

#include <string>
#include <vector>

#include "launch/rank_process.h"
#include "launch/step_floor.h"

namespace llm_dist::launch {

// For people, without an end of line; and as a JSON object.
std::string describe(const Ceilings& ceilings);
std::string ceilings_json(const Ceilings& ceilings);

// Bytes of this rank's weights that every decode step reads: not the rows of the embedding it looks up.
double step_weight_bytes(RankProcess& process);

// The steps in which a batch decodes.
DecodeShape decode_shape(RankProcess& process, int batch, int64_t context);

// For decodes of these batches. Collective: all ranks of the world, after loading and before any of them runs
// steps.
Result<Ceilings> measure_ceilings(RankProcess& process, const std::vector<int>& batches);

}  // namespace llm_dist::launch
