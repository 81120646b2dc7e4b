// Replicas on this machine's GPUs; or, with LLM_DIST_TEST_RANKS_SHARE_GPU=1, on the first one, which up to
// four ranks have together, without graphs and without the kernels that wait on all of a GPU's processors.
// About every second run over all layouts then stands still in one of them, another one each time, as none
// with a GPU for each rank ever did: to be run again.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "comm/p2p_groups.h"
#include "tests/comm/shared_gpu.h"
#include "tests/comm/waiting_ranks.h"
#include "tests/device/cuda_module.h"
#include "tests/engine/replica.h"

namespace llm_dist::engine {

class CudaReplicas : public testing::Test {
 protected:
  static void SetUpTestSuite() { comm::prepare_for_waiting_ranks(); }
  void SetUp() override {
    auto module = cuda_module();
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    module_ = *module;
    if (module_->visible_devices() == 0) GTEST_SKIP() << "no GPU";
    // One that began early and waits could keep the room that what it waits for needs.
    if (comm::ranks_share_gpu()) module_->allow_early_starts(false);
  }

  // That a world may have. Streams of more would share the queues of one GPU.
  int most_ranks() const {
    constexpr int kMostSharing = 4;
    return comm::ranks_share_gpu() ? kMostSharing : module_->visible_devices();
  }

  // Ranks that share a GPU replay none: with graphs they stand still more often.
  std::vector<int64_t> graph_sizes() const {
    return comm::ranks_share_gpu() ? std::vector<int64_t>{} : std::vector<int64_t>{1, 2, 4, 8};
  }

  std::unique_ptr<device::Backend> make_backend() const { return module_->make_backend(0).value(); }

  // limits: of sums over peer memory; none: the defaults.
  ReplicaOptions replica_options(const EngineOptions& engine,
                                 std::optional<comm::PeerLimits> limits = {}) const {
    const bool shares = comm::ranks_share_gpu();
    ReplicaOptions options{.engine = engine, .ops = module_->ops};
    if (shares) {
      options.engine.persistent_kernels = options.engine.row_teams = options.engine.autotune = false;
      options.memory_first = true;
    }
    options.make_backend = [module = module_, shares](int rank) {
      return module->make_backend(shares ? 0 : rank);
    };
    options.make_communicator = [limits, shares](comm::World& world,
                                                 std::span<const int> ranks,
                                                 const std::string& name,
                                                 const comm::GroupUse& use) {
      const auto defaults = comm::default_peer_limits(static_cast<int>(ranks.size()), use);
      const auto wanted = use.hands_off ? defaults : limits.value_or(defaults);
      return shares ? comm::make_p2p_on_shared_gpu(world, ranks, name, 0, wanted)
                    : comm::make_p2p_communicator(world, ranks, name, world.rank_info().rank, wanted);
    };
    return options;
  }

  const kernels::CudaModule* module_ = nullptr;
};

}  // namespace llm_dist::engine
