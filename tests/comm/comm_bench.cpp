// Latency of collectives over this world: mpirun -np 2 comm_bench. Prints a row a size.
#include <algorithm>
#include <cstdio>
#include <numeric>

#include "comm/world.h"
#include "src/device/cpu/cpu_stream.h"
#include "tests/base/allocation_count.h"

namespace llm_dist::comm {
namespace {

struct Lane {
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<device::CpuStream> stream;
  std::vector<uint16_t> data;
};

Lane make_lane(World& world, int64_t bytes) {
  std::vector<int> ranks(static_cast<size_t>(world.rank_info().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto comm = world.make_communicator(ranks, "bench");
  CHECK(comm.ok(), "{}", comm.status().to_string());
  return {std::move(comm).value(),
          std::make_unique<device::CpuStream>(device::CpuStreamOptions{.name = "bench"}),
          std::vector<uint16_t>(static_cast<size_t>(bytes / 2))};
}

// Other work on the machine disturbs some batches: the best one shows the code.
constexpr int kBatches = 20;

// `num_lanes` communicators at once, each on its own stream.
void measure(World& world, int64_t bytes, int num_lanes, int repeats) {
  std::vector<Lane> lanes;
  lanes.reserve(static_cast<size_t>(num_lanes));
  for (int i = 0; i < num_lanes; ++i) lanes.push_back(make_lane(world, bytes));
  auto run = [&](int count) {
    for (int i = 0; i < count; ++i)
      for (Lane& lane : lanes)
        lane.comm->all_reduce(
            Tensor::contiguous(lane.data.data(), DType::kBF16, {bytes / 2}), ReduceOp::kSum, *lane.stream);
    for (Lane& lane : lanes) {
      Status status = lane.stream->synchronize(Deadline::after_seconds(60));
      CHECK(status.ok(), "{}", status.to_string());
    }
  };
  run(repeats / 10 + 1);
  int64_t allocations = num_allocations();
  double best = 1e30;
  double total = 0;
  for (int batch = 0; batch < kBatches; ++batch) {
    TimePoint begin = Clock::now();
    run(repeats);
    double seconds = seconds_between(begin, Clock::now()) / repeats;
    best = std::min(best, seconds);
    total += seconds;
  }
  allocations = num_allocations() - allocations;
  if (world.rank_info().rank != 0) return;
  std::printf(
      "all_reduce bf16 %8lld bytes, %d at once: %8.1f us (best batch %8.1f us), %.2f allocations each\n",
      static_cast<long long>(bytes),
      num_lanes,
      1e6 * total / kBatches,
      1e6 * best,
      static_cast<double>(allocations) / (kBatches * repeats * num_lanes));
}

int run_bench() {
  auto info = discover_ranks({}, read_environment());
  CHECK(info.ok(), "{}", info.status().to_string());
  auto world = make_world(*info, {});
  CHECK(world.ok(), "{}", world.status().to_string());
  for (int num_lanes : {1, 3})
    for (auto [bytes, repeats] : {std::pair{2 << 10, 200}, {16 << 10, 100}, {1 << 20, 10}})
      measure(**world, bytes, num_lanes, repeats);
  Status closed = (*world)->close(Deadline::after_seconds(20));
  CHECK(closed.ok(), "{}", closed.to_string());
  return 0;
}

}  // namespace
}  // namespace llm_dist::comm

int main() { return llm_dist::comm::run_bench(); }
