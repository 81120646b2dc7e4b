#include "src/engine/memory_plan.h"

#include <algorithm>
#include <cstdio>

#include "comm/p2p/peer_layout.h"
#include "src/engine/rank_engine.h"
#include "src/engine/step_inputs.h"

namespace llm_dist::engine {

std::string human_bytes(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

namespace {

// What a driver keeps for an instantiated graph's node: 2 KiB were seen; the rest is to spare.
constexpr int64_t kGraphNodeBytes = 8 << 10;
constexpr int64_t kNodesPerLayer = 16;

int64_t graph_bytes(const EngineOptions& options, int64_t num_layers) {
  auto graphs = static_cast<int64_t>(options.graph_sizes.size());
  return graphs * (num_layers + 1) * kNodesPerLayer * kGraphNodeBytes;
}

}  // namespace

Result<MemoryPlan> plan_memory(const checkpoint::Checkpoint& checkpoint,
                               const kernels::OpTable& ops,
                               const EngineOptions& options,
                               int rank) {
  parallel::Arena arena(arena_rows(options));
  parallel::WeightMap weights;
  parallel::Context context{.mesh = parallel::Mesh(options.layout, rank),
                            .dtype = options.dtype,
                            .arena = &arena,
                            .weights = &weights};
  ASSIGN_OR_RETURN(ModelParts parts, build_model(checkpoint, options, context));
  ASSIGN_OR_RETURN(model::LoadPlan load, model::plan_load(weights, checkpoint, ops, held_weights(options)));
  KvSpec spec = kv_spec_of(*parts.model, options);

  MemoryPlan plan;
  plan.rank = rank;
  plan.layers = parts.layers;
  plan.weight_bytes = load.weight_bytes;
  plan.table_bytes = load.bytes - load.weight_bytes;
  plan.activation_bytes = arena.bytes();
  plan.workspace_bytes = ops.workspace_bytes(op_state_options(checkpoint.config(), options));
  plan.step_bytes = StepInputs::device_bytes(options) * (options.max_steps_in_flight() + 2) +
                    ModelRunner::history_bytes(options);
  plan.lane_bytes = lane_bytes(context.mesh, checkpoint.config().hidden_size, options);
  auto peer_bytes = [](int size, const comm::GroupUse& use) {
    return comm::peer_layout(size, comm::default_peer_limits(size, use)).bytes;
  };
  if (options.peer_memory && options.layout.tp > 1) {
    const int64_t shared_bytes = shared_step_bytes(checkpoint.config().hidden_size, options);
    plan.peer_bytes += peer_bytes(options.layout.tp, {.shared_bytes = shared_bytes});
  }
  if (options.peer_hand_off) plan.peer_bytes += num_lanes(context.mesh) * peer_bytes(2, {.hands_off = true});
  plan.graph_bytes = graph_bytes(options, parts.layers.count);
  plan.kv_block_bytes = spec.block_bytes();
  plan.block_size = options.block_size;
  return plan;
}

std::string describe(const std::vector<MemoryPlan>& plans, int64_t memory_bytes) {
  std::string out = "rank  layers     weights  activations    workspace  KV per token";
  out += memory_bytes > 0 ? "     KV blocks  KV tokens\n" : "\n";
  char line[256];
  for (const MemoryPlan& plan : plans) {
    std::snprintf(line,
                  sizeof line,
                  "%4d  %2lld-%-4lld %12s %12s %12s %13s",
                  plan.rank,
                  static_cast<long long>(plan.layers.begin),
                  static_cast<long long>(plan.layers.end() - 1),
                  human_bytes(plan.weight_bytes).c_str(),
                  human_bytes(plan.activation_bytes).c_str(),
                  human_bytes(plan.fixed_bytes() - plan.weight_bytes - plan.activation_bytes).c_str(),
                  human_bytes(static_cast<int64_t>(plan.kv_bytes_per_token())).c_str());
    out += line;
    if (memory_bytes > 0) {
      int64_t blocks = plan.blocks_in(memory_bytes);
      std::snprintf(line,
                    sizeof line,
                    "  %12lld %10lld",
                    static_cast<long long>(blocks),
                    static_cast<long long>(blocks * plan.block_size));
      out += line;
    }
    out += "\n";
  }
  return out;
}

}  // namespace llm_dist::engine
