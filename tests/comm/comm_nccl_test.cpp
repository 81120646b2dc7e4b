// The conformance suite over NCCL: a world of threads, one for each visible GPU. Exits with 77 where there
// are fewer than two.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "comm/nccl_groups.h"
#include "comm/thread/thread_world.h"
#include "kernels/cuda/cuda_module.h"
#include "src/base/run_time_module.h"
#include "src/device/cpu/cpu_stream.h"
#include "tests/comm/conformance.h"
#include "tests/comm/conformance_group.h"

namespace llm_dist::comm {
namespace {

constexpr double kMeetSeconds = 60;
// Of one case, its groups' making included. Some of CUDA's own calls have no deadline.
constexpr double kCaseSeconds = 150;
constexpr SiteTraits kNcclTraits{.sums_in_rank_order = false,
                                 .operations_end_themselves = false,
                                 .streams_may_stall = false,
                                 .abort_seconds = 3};

Result<const kernels::CudaModule*> cuda_module() {
  ASSIGN_OR_RETURN(void* entry,
                   open_module({.file = kernels::kCudaModuleFile,
                                .entry = kernels::kCudaModuleEntry,
                                .how_to_build = "build with CUDA",
                                .how_to_install = "install CUDA"}));
  const kernels::CudaModule* module = reinterpret_cast<kernels::CudaModuleEntry>(entry)();
  if (module == nullptr || module->version != kernels::kCudaModuleVersion)
    return failed_precondition("the CUDA module belongs to another build of llm-dist");
  return module;
}

// Ends the process when it is not gone in time: nothing else ends a thread that hangs in a driver's call.
class Watchdog {
 public:
  explicit Watchdog(const char* watched) {
    thread_ = std::thread([this, watched] {
      std::unique_lock lock(mutex_);
      Deadline deadline = Deadline::after_seconds(kCaseSeconds);
      if (gone_.wait_until(lock, deadline.when(), [this] { return leaving_; })) return;
      std::fflush(stdout);
      std::fprintf(stderr, "%s did not end in %.0f s\n", watched, kCaseSeconds);
      std::_Exit(1);
    });
  }
  ~Watchdog() {
    {
      std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    gone_.notify_all();
    thread_.join();
  }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable gone_;
  bool leaving_ = false;
  std::thread thread_;
};

// When it returns, all of the group's ranks have their communicator: making one frees device memory, which in
// a process with several GPUs may wait for the operations of those that are ahead.
Result<std::unique_ptr<Communicator>> make_connected(World& world,
                                                     std::span<const int> world_ranks,
                                                     const std::string& name) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm,
                   make_nccl_communicator(world, world_ranks, name, world.rank_info().rank));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> hosts,
                   world.make_communicator(world_ranks, name + " connected"));
  int32_t here = 1;
  device::CpuStream stream({.name = "connected"});
  hosts->all_reduce(Tensor::contiguous(&here, DType::kI32, {1}), ReduceOp::kSum, stream);
  RETURN_IF_ERROR(stream.synchronize(Deadline::after_seconds(kMeetSeconds)));
  return comm;
}

// One rank's part of a case. The barriers keep what starts and ends a rank apart from the others' operations.
void run_rank(const kernels::CudaModule& module,
              ThreadWorld& threads,
              int rank,
              const ConformanceCase& tried) {
  std::unique_ptr<World> world = threads.join(rank);
  auto backend = module.make_backend(rank);
  ASSERT_TRUE(backend.ok()) << backend.status().to_string();
  Site site(std::move(backend).value(),
            kNcclTraits,
            [](World& of, std::span<const int> ranks, const std::string& name, Duration) {
              return make_connected(of, ranks, name);
            });
  ASSERT_TRUE(world->barrier(Deadline::after_seconds(kMeetSeconds)).ok());
  tried.run(*world, site);
  EXPECT_TRUE(world->barrier(Deadline::after_seconds(kMeetSeconds)).ok());
  site.let_go();
  EXPECT_TRUE(world->barrier(Deadline::after_seconds(kMeetSeconds)).ok());
}

class NcclConformance : public testing::TestWithParam<std::tuple<int, ConformanceCase>> {};

TEST_P(NcclConformance, Case) {
  auto [size, tried] = GetParam();
  const kernels::CudaModule* module = cuda_module().value();
  if (size > module->visible_devices()) GTEST_SKIP() << "fewer than " << size << " GPUs";
  Watchdog watchdog(testing::UnitTest::GetInstance()->current_test_info()->name());
  ThreadWorld world(size, {.collective_timeout = std::chrono::seconds(30)});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank, run = tried] { run_rank(*module, world, rank, run); });
  for (std::thread& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(Gpus,
                         NcclConformance,
                         testing::Combine(testing::Values(2, 3, 4),
                                          testing::ValuesIn(conformance_cases(kNcclTraits))),
                         [](const auto& instance) {
                           return case_name(std::get<1>(instance.param)) + "With" +
                                  std::to_string(std::get<0>(instance.param));
                         });

}  // namespace
}  // namespace llm_dist::comm

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  auto module = llm_dist::comm::cuda_module();
  if (!module.ok()) {
    std::fprintf(stderr, "%s\n", module.status().to_string().c_str());
    return 1;
  }
  int gpus = (*module)->visible_devices();
  if (gpus >= 2) return RUN_ALL_TESTS();
  std::printf("skipped: %d GPUs are visible, a group wants two\n", gpus);
  return kSkipped;
}
