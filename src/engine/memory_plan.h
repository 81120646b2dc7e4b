// MemoryPlan: what one rank will hold, in bytes, computed from shapes before anything is allocated. `plan`
// prints it; the engine refuses a model that does not fit with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/partition.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/engine_options.h"

namespace llm_dist::engine {

struct MemoryPlan {
  int rank = 0;
  parallel::Range layers;
  int64_t weight_bytes = 0;      // tensors of the checkpoint, as held
  int64_t table_bytes = 0;       // rotary tables, alignment
  int64_t activation_bytes = 0;  // the arena
  int64_t workspace_bytes = 0;   // the ops' own
  int64_t step_bytes = 0;        // step inputs, staging, token history
  int64_t lane_bytes = 0;        // stage hand-off and token return
  int64_t peer_bytes = 0;        // of a group's GPUs, for each other
  int64_t graph_bytes = 0;       // decode graphs, as their nodes are expected to take
  int64_t kv_block_bytes = 0;    // one block, all layers of this rank
  int64_t block_size = 0;        // tokens a block

  int64_t fixed_bytes() const {
    return weight_bytes + table_bytes + activation_bytes + workspace_bytes + step_bytes + lane_bytes +
           peer_bytes + graph_bytes;
  }
  double kv_bytes_per_token() const {
    return static_cast<double>(kv_block_bytes) / static_cast<double>(block_size);
  }
  int64_t blocks_in(int64_t bytes) const {
    return bytes <= fixed_bytes() ? 0 : (bytes - fixed_bytes()) / kv_block_bytes;
  }
};

// rank: of options.layout. Reads headers only.
Result<MemoryPlan> plan_memory(const checkpoint::Checkpoint& checkpoint,
                               const kernels::OpTable& ops,
                               const EngineOptions& options,
                               int rank);

// The plan as a table, for people. `memory_bytes`: of each rank's device, 0 when not known.
std::string describe(const std::vector<MemoryPlan>& plans, int64_t memory_bytes);

std::string human_bytes(int64_t bytes);  // "1.25 GiB"

}  // namespace llm_dist::engine
