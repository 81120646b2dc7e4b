// Replicas on this machine's GPUs.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "comm/p2p_groups.h"
#include "tests/device/cuda_module.h"
#include "tests/engine/replica.h"

namespace llm_dist::engine {

class CudaReplicas : public testing::Test {
 protected:
  void SetUp() override {
    auto module = cuda_module();
    ASSERT_TRUE(module.ok()) << module.status().to_string();
    module_ = *module;
    if (module_->visible_devices() == 0) GTEST_SKIP() << "no GPU";
  }

  // limits: of sums over peer memory; none: the defaults.
  ReplicaOptions replica_options(const EngineOptions& engine,
                                 std::optional<comm::PeerLimits> limits = {}) const {
    ReplicaOptions options{.engine = engine, .ops = module_->ops};
    options.make_backend = [module = module_](int rank) { return module->make_backend(rank); };
    options.make_communicator = [limits](comm::World& world,
                                         std::span<const int> ranks,
                                         const std::string& name,
                                         const comm::GroupUse& use) {
      int index = world.rank_info().rank;
      const auto defaults = comm::default_peer_limits(static_cast<int>(ranks.size()), use);
      return comm::make_p2p_communicator(
          world, ranks, name, index, use.hands_off ? defaults : limits.value_or(defaults));
    };
    return options;
  }

  const kernels::CudaModule* module_ = nullptr;
};

}  // namespace llm_dist::engine
