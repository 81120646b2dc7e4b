#include "tests/comm/p2p_fixture.h"

#include "comm/bootstrap.h"
#include "tests/comm/shared_gpu.h"

namespace llm_dist::comm {
namespace {

// The world of this process where a launcher started it; else tests make worlds of threads.
std::unique_ptr<World>& launched_world() {
  static std::unique_ptr<World> world;
  return world;
}

// Of ranks on one GPU: with more, all blocks of the largest two-shot sums would not have room on an H100.
constexpr int kMostSharing = 3;

// As make_p2p_communicator, which has NCCL behind it: that refuses ranks on one GPU.
Result<std::unique_ptr<Communicator>> make_on_shared_gpu(World& world,
                                                         std::span<const int> ranks,
                                                         const std::string& name,
                                                         int device_index,
                                                         const std::optional<PeerLimits>& limits) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> fallback,
                   make_shared_gpu_communicator(world, ranks, name, device_index));
  return put_peer_memory_before(std::move(fallback), world, ranks, device_index, limits);
}

MakeGpuGroup group_maker(const std::optional<PeerLimits>& limits) {
  return [limits](World& world,
                  std::span<const int> ranks,
                  const std::string& name,
                  int device_index) -> Result<std::unique_ptr<Communicator>> {
    const std::string backend = ranks_share_gpu() ? "p2p+shared-gpu" : "p2p+nccl";
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm,
                     ranks_share_gpu() ? make_on_shared_gpu(world, ranks, name, device_index, limits)
                                       : make_p2p_communicator(world, ranks, name, device_index, limits));
    EXPECT_EQ(comm->info().backend, ranks.size() == 1 ? "self" : backend);
    return comm;
  };
}

}  // namespace

void run_in_threads(int size, const std::optional<PeerLimits>& limits, const RankBody& body) {
  const kernels::CudaModule* module = cuda_module().value();
  if (launched_world() != nullptr) GTEST_SKIP() << "in threads only";
  if (ranks_share_gpu()) {
    if (size > kMostSharing) GTEST_SKIP() << "kernels of " << size << " ranks do not fit on one GPU";
  } else if (size > module->visible_devices()) {
    GTEST_SKIP() << "fewer than " << size << " GPUs";
  }
  run_on_gpus(*module, size, kPeerTraits, group_maker(limits), body);
}

void run_with(int size, const std::optional<PeerLimits>& limits, const RankBody& body) {
  World* world = launched_world().get();
  if (world == nullptr) return run_in_threads(size, limits, body);
  if (ranks_share_gpu()) GTEST_SKIP() << "a GPU is shared in threads only";
  if (size != world->rank_info().size) GTEST_SKIP() << "not " << size << " processes";
  int index = world->hosts()[static_cast<size_t>(world->rank_info().rank)].local_rank;
  run_on_gpu(*cuda_module().value(), *world, index, kPeerTraits, group_maker(limits), body);
}

namespace {

int run_tests(int argc, char** argv) {
  auto bootstrap = plan_bootstrap({}, read_environment());
  CHECK(bootstrap.ok(), "{}", bootstrap.status().to_string());
  if (bootstrap->ranks.size == 1) return run_gpu_tests(argc, argv);
  auto world = make_world(*bootstrap, {});
  CHECK(world.ok(), "{}", world.status().to_string());
  launched_world() = std::move(world).value();
  int failed = run_gpu_tests(argc, argv);
  Status closed = launched_world()->close(Deadline::after_seconds(20));
  launched_world().reset();
  CHECK(closed.ok(), "{}", closed.to_string());
  return failed;
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) { return llm_dist::comm::run_tests(argc, argv); }
