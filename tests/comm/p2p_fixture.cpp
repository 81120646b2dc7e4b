#include "tests/comm/p2p_fixture.h"

#include <random>
#include <thread>

#include "comm/bootstrap.h"
#include "comm/nccl_loader.h"
#include "tests/comm/shared_gpu.h"

namespace llm_dist::comm {
namespace {

// The world of this process where a launcher started it; else tests make worlds of threads.
std::unique_ptr<World>& launched_world() {
  static std::unique_ptr<World> world;
  return world;
}

MakeGpuGroup group_maker(const std::optional<PeerLimits>& wanted) {
  return [wanted](World& world,
                  std::span<const int> ranks,
                  const std::string& name,
                  int device_index) -> Result<std::unique_ptr<Communicator>> {
    const PeerLimits limits = wanted.value_or(default_peer_limits(static_cast<int>(ranks.size()), {}));
    const std::string backend = ranks_share_gpu() ? "p2p+shared-gpu" : "p2p+nccl";
    ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm,
                     ranks_share_gpu() ? make_p2p_on_shared_gpu(world, ranks, name, device_index, limits)
                                       : make_p2p_communicator(world, ranks, name, device_index, limits));
    EXPECT_EQ(comm->info().backend, ranks.size() == 1 ? "self" : backend);
    return comm;
  };
}

// What a PeerCommunicator leaves to another: counts calls, does nothing.
class CountingFallback : public Communicator {
 public:
  CountingFallback(CommInfo info, int& calls) : info_(std::move(info)), calls_(calls) {
    info_.backend = "nothing";
  }
  const CommInfo& info() const override { return info_; }
  void all_reduce(const Tensor&, ReduceOp, device::Stream&) override { ++calls_; }
  void all_gather(const Tensor&, const Tensor&, device::Stream&) override { ++calls_; }
  void reduce_scatter(const Tensor&, const Tensor&, ReduceOp, device::Stream&) override { ++calls_; }
  void broadcast(const Tensor&, int, device::Stream&) override { ++calls_; }
  void send(const Tensor&, int, device::Stream&) override { ++calls_; }
  void recv(const Tensor&, int, device::Stream&) override { ++calls_; }
  void all_to_all(const Tensor&, const Tensor&, device::Stream&) override { ++calls_; }
  Status poll() const override { return ok_status(); }
  void abort(Status) override {}

 private:
  CommInfo info_;
  int& calls_;
};

}  // namespace

void run_in_threads(int size,
                    const std::optional<PeerLimits>& limits,
                    const RankBody& body,
                    int most_sharing) {
  const kernels::CudaModule* module = cuda_module().value();
  if (launched_world() != nullptr) GTEST_SKIP() << "in threads only";
  if (ranks_share_gpu()) {
    if (size > most_sharing) GTEST_SKIP() << "kernels of " << size << " ranks do not fit on one GPU";
  } else if (size > module->visible_devices()) {
    GTEST_SKIP() << "fewer than " << size << " GPUs";
  }
  run_on_gpus(*module, size, kPeerTraits, group_maker(limits), body);
}

void run_with(int size, const std::optional<PeerLimits>& limits, const RankBody& body, int most_sharing) {
  World* world = launched_world().get();
  if (world == nullptr) return run_in_threads(size, limits, body, most_sharing);
  if (ranks_share_gpu()) GTEST_SKIP() << "a GPU is shared in threads only";
  if (size != world->rank_info().size) GTEST_SKIP() << "not " << size << " processes";
  int index = world->hosts()[static_cast<size_t>(world->rank_info().rank)].local_rank;
  run_on_gpu(*cuda_module().value(), *world, index, kPeerTraits, group_maker(limits), body);
}

std::string name_of_ways(const testing::TestParamInfo<std::tuple<int, Ways>>& instance) {
  auto [size, ways] = instance.param;
  return std::string(ways.name) + "With" + std::to_string(size);
}

std::string name_of_case(const testing::TestParamInfo<CaseOverWays>& instance) {
  auto [size, ways, tried] = instance.param;
  return case_name(tried) + "Over" + ways.name + "With" + std::to_string(size);
}

std::vector<CaseOverWays> cases_over(std::span<const Ways> all_ways,
                                     const std::function<bool(const Ways&, std::string_view)>& takes) {
  std::vector<CaseOverWays> cases;
  for (int size : {2, 3, 4}) {
    for (const Ways& ways : all_ways) {
      for (const ConformanceCase& each : conformance_cases(kPeerTraits))
        if (takes(ways, case_name(each))) cases.emplace_back(size, ways, each);
    }
  }
  return cases;
}

GroupUnderTest make_group_without_nccl(World& world, Site& site, const PeerLimits& limits, int& left) {
  auto stream = site.backend().make_stream("alone");
  auto deadline = [] { return Deadline::after_seconds(30); };
  const PeerGroup group{.info = {.backend = "p2p",
                                 .name = "alone",
                                 .rank = world.rank_info().rank,
                                 .size = world.rank_info().size},
                        .device_index = site.backend().device().index,
                        .limits = limits,
                        .leave = [&world, deadline] { return world.barrier(deadline()); }};
  std::unique_ptr<PeerMemory> memory = open_nccl_module().value()->make_peer_memory(group);
  auto cards = world.all_gather_bytes(memory->prepare().value(), deadline());
  CHECK(cards.ok(), "{}", cards.status().to_string());
  Status opened = memory->open(*cards);
  CHECK(opened.ok(), "{}", opened.to_string());
  std::shared_ptr<Communicator> comm = memory->connect(std::make_unique<CountingFallback>(group.info, left));
  CHECK(world.barrier(deadline()).ok(), "a rank has no group");
  site.keep(comm);
  return {site, std::move(comm), std::move(stream)};
}

void expect_waiting(device::Stream& stream) {
  Status waiting = stream.synchronize(Deadline::after_seconds(0.1));
  EXPECT_EQ(waiting.code(), StatusCode::kDeadlineExceeded) << waiting.to_string();
}

void expect_abort_to_end(World& world, GroupUnderTest& group, const DoomedCalls& calls) {
  ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
  if (calls.waiting) {
    calls.issue();
    expect_waiting(*group.stream);
    group.comm->abort(unavailable("a peer is gone"));
    Status ended = group.stream->synchronize(Deadline::after_seconds(1));
    EXPECT_TRUE(ended.ok()) << ended.to_string();
    EXPECT_EQ(group.comm->poll().code(), StatusCode::kUnavailable);
    calls.issue_more();
    EXPECT_EQ(group.stream->error().code(), StatusCode::kUnavailable);
  } else {
    calls.issue_before_leaving();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    group.comm->abort(unavailable("this rank is gone"));
  }
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
}

void replay_in_graph(World& world, Site& site, GroupUnderTest& group, const Replays& replays) {
  replays.restart();
  replays.issue();
  ASSERT_TRUE(group.synchronize().ok()) << group.stream->error().to_string();
  site.backend().begin_capture(*group.stream);
  replays.issue();
  auto graph = site.backend().end_capture(*group.stream);
  ASSERT_TRUE(graph.ok()) << graph.status().to_string();
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(30)).ok());
  std::mt19937 pauses(static_cast<unsigned>(group.rank()));
  for (int round = 0; round < replays.rounds; ++round) {
    replays.restart();
    for (int replay = 0; replay < replays.replays; ++replay) {
      (*graph)->launch(*group.stream);
      if (pauses() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(pauses() % 2000));
    }
    replays.expect();
  }
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
