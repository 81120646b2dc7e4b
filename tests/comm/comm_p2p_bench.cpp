// What an all-reduce of bf16 takes in a graph, over NCCL and each way over peer memory: the table from which
// the limits in comm/p2p/peer_limits.cpp come. A thread for each GPU: comm_p2p_bench [RANKS]
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <thread>

#include "comm/nccl_groups.h"
#include "comm/p2p_groups.h"
#include "comm/thread/thread_world.h"
#include "tests/comm/gpu_ranks.h"

namespace llm_dist::comm {
namespace {

constexpr int64_t kLeastBytes = 2 << 10;
constexpr int64_t kMostBytes = 16 << 20;
constexpr int kCallsInGraph = 64;
constexpr int kReplays = 41;
constexpr double kSeconds = 60;

struct Way {
  const char* name;
  PeerLimits limits;
};
constexpr Way kWays[] = {{"NCCL", {}},
                         {"packets", {.packets_bytes = kMostBytes}},
                         {"one shot", {.one_shot_bytes = kMostBytes}},
                         {"two shots", {.two_shot_bytes = kMostBytes}}};

void must(const Status& status) { CHECK(status.ok(), "{}", status.to_string()); }

// Of one rank.
struct Bench {
  World& world;
  device::Backend& backend;
  device::Stream& stream;
  device::Buffer data;
  device::Buffer marks;  // pinned
};

// Median microseconds of a call.
double measure(Bench& bench, Communicator& comm, int64_t bytes) {
  Tensor tensor = bench.data.view(DType::kBF16, {bytes / 2});
  auto issue = [&] { comm.all_reduce(tensor, ReduceOp::kSum, bench.stream); };
  issue();
  must(bench.stream.synchronize(Deadline::after_seconds(kSeconds)));
  bench.backend.begin_capture(bench.stream);
  for (int i = 0; i < kCallsInGraph; ++i) issue();
  std::unique_ptr<device::Graph> graph = bench.backend.end_capture(bench.stream).value();
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
  auto* marks = reinterpret_cast<int64_t*>(bench.marks.data());
  for (int i = 0; i < kReplays; ++i) {
    bench.stream.write_timestamp(marks + i);
    graph->launch(bench.stream);
  }
  bench.stream.write_timestamp(marks + kReplays);
  must(bench.stream.synchronize(Deadline::after_seconds(kSeconds)));
  must(bench.world.barrier(Deadline::after_seconds(kSeconds)));
  std::vector<double> times;
  for (int i = 1; i < kReplays; ++i)
    times.push_back(1e-3 * static_cast<double>(marks[i + 1] - marks[i]) / kCallsInGraph);
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void run_rank(const kernels::CudaModule& module, ThreadWorld& threads, int rank) {
  std::unique_ptr<World> world = threads.join(rank);
  std::unique_ptr<device::Backend> backend = module.make_backend(rank).value();
  std::unique_ptr<device::Stream> stream = backend->make_stream("bench");
  Bench bench{*world,
              *backend,
              *stream,
              backend->allocate(kMostBytes, device::MemoryKind::kDevice).value(),
              backend->allocate(4096, device::MemoryKind::kPinned).value()};
  std::vector<int> ranks(static_cast<size_t>(world->rank_info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const Way& way : kWays)
    groups.push_back(make_p2p_communicator(*world, ranks, way.name, rank, way.limits).value());
  if (rank == 0) std::printf("%10s", "bytes");
  for (const Way& way : kWays)
    if (rank == 0) std::printf(" %10s", way.name);
  if (rank == 0) std::printf("   us in a graph, %zu GPUs\n", ranks.size());
  for (int64_t bytes = kLeastBytes; bytes <= kMostBytes; bytes *= 2) {
    if (rank == 0) std::printf("%10lld", static_cast<long long>(bytes));
    for (const auto& group : groups) {
      double time = measure(bench, *group, bytes);
      if (rank == 0) std::printf(" %10.2f", time);
    }
    if (rank == 0) std::printf("\n");
  }
  must(world->barrier(Deadline::after_seconds(kSeconds)));
}

int run(int wanted) {
  const kernels::CudaModule* module = cuda_module().value();
  int size = wanted > 0 ? wanted : std::min(module->visible_devices(), kMaxPeerRanks);
  if (size < 2 || size > module->visible_devices()) {
    std::printf("skipped: %d GPUs are visible\n", module->visible_devices());
    return kSkipped;
  }
  ThreadWorld threads(size, {.collective_timeout = std::chrono::seconds(60)});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.emplace_back([&, rank] { run_rank(*module, threads, rank); });
  for (std::thread& rank : ranks) rank.join();
  return 0;
}

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) { return llm_dist::comm::run(argc > 1 ? std::atoi(argv[1]) : 0); }
