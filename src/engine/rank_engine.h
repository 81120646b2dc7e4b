// RankEngine: everything one rank owns, built in the order it is needed: model, weights, memory,
// communicators, runner.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/engine_options.h"
#include "src/engine/memory_plan.h"
#include "src/engine/model_runner.h"
#include "src/engine/step_pace.h"
#include "src/model/loader.h"
#include "src/model/model.h"

namespace llm_dist::engine {

struct ModelParts {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Sampler> sampler;  // last stage only
  parallel::Range layers;
};

// Shared by the plan and the engine, so that they cannot differ.
Result<ModelParts> build_model(const checkpoint::Checkpoint& checkpoint,
                               const EngineOptions& options,
                               const parallel::Context& context);
KvSpec kv_spec_of(const model::Model& model, const EngineOptions& options);
parallel::ArenaRows arena_rows(const EngineOptions& options);
model::HeldWeights held_weights(const EngineOptions& options);
kernels::OpStateOptions op_state_options(const checkpoint::ModelConfig& config, const EngineOptions& options);
// Hand-overs between stages that a rank takes part in.
int num_lanes(const parallel::Mesh& mesh);
int64_t lane_bytes(const parallel::Mesh& mesh, int64_t hidden_size, const EngineOptions& options);
// Rows of the largest step of which each rank of a tensor group has a share, as norms of shares take them
// (comm/norm_reducer.h); 0 where they are not to take any.
int64_t shared_step_bytes(int64_t hidden_size, const EngineOptions& options);

struct RankEngineParts {
  comm::World* world = nullptr;
  device::Backend* backend = nullptr;
  const kernels::OpTable* ops = nullptr;
  const checkpoint::Checkpoint* checkpoint = nullptr;
  EngineHooks hooks;
  // Makes a group whose tensors lie on the backend's device; empty: the world's own.
  std::function<Result<std::unique_ptr<comm::Communicator>>(
      std::span<const int> world_ranks, const std::string& name, const comm::GroupUse& use)>
      make_communicator;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> load_progress;
};

class RankEngine {
 public:
  // Collective: every rank of the world calls it. All end with the same number of KV blocks, or all with an
  // error.
  static Result<std::unique_ptr<RankEngine>> create(const RankEngineParts& parts,
                                                    const EngineOptions& options);
  ~RankEngine();

  // Waits until all that was issued has run; what takes too long is aborted. deadline_exceeded where
  // something runs even then: the destructor would wait for that.
  Status finish();

  ModelRunner& runner() { return *runner_; }
  // On the stream that steps run on; for measurements between steps.
  const kernels::Ops& ops() const { return *ops_; }
  const EngineOptions& options() const { return options_; }  // num_blocks as agreed
  const MemoryPlan& memory_plan() const { return plan_; }
  const checkpoint::ReadStats& load_stats() const { return weights_.stats; }
  const KvSpec& kv_spec() const { return kv_cache_.spec(); }

  // By the steps that warmed it up, this rank's part of them.
  const StepPace& warm_up_pace() const { return warm_up_pace_; }
  // Everything this rank has measured since it was built. For the thread that executes steps.
  RankMeters meters();
  // The first error of any communicator or stream, or ok: also while no step is issued. For the thread that
  // executes steps.
  Status poll();
  // Ends every collective under way; any thread.
  void abort(const Status& cause);

 private:
  RankEngine(const RankEngineParts& parts, const EngineOptions& options);
  Status build();
  Status make_communicators();
  Result<comm::Communicator*> connect(const std::string& name,
                                      const std::vector<int>& ranks,
                                      const comm::GroupUse& use);
  Status make_lanes();
  bool lanes_wait_on_device() const;
  Status load();
  Status agree_on_blocks();
  Status agree_on_shares(const comm::NormReducer* reducer);
  Status agree_on_terms(comm::NormReducer* reducer);
  Status agree_on_rows(const comm::NormReducer* reducer);
  Result<std::vector<bool>> agree(const std::vector<bool>& mine);
  Status warm_up();
  Status warm_up_prompt(int64_t tokens);
  Status capture_graphs();

  RankEngineParts parts_;
  EngineOptions options_;
  parallel::Mesh mesh_;
  MemoryPlan plan_;
  parallel::Arena arena_;
  parallel::WeightMap weight_map_;
  std::unique_ptr<kernels::OpState> op_state_;
  std::unique_ptr<kernels::Ops> ops_;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;
  comm::Communicator* tensor_group_ = nullptr;
  model::LoadedWeights weights_;
  ModelParts model_;
  KvCache kv_cache_;
  std::unique_ptr<device::Stream> compute_;
  PipelineLanes lanes_;
  std::unique_ptr<ModelRunner> runner_;
  std::array<CollectiveStats, kNumCollectives> warm_up_collectives_{};
  StepPace warm_up_pace_;
};

}  // namespace llm_dist::engine
