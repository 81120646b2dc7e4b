#include "tests/comm/gpu_ranks.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "comm/thread/thread_world.h"
#include "src/device/cpu/cpu_stream.h"

namespace llm_dist::comm {
namespace {

constexpr double kMeetSeconds = 60;
// Of one case, its groups' making included. Some of CUDA's own calls have no deadline.
constexpr double kCaseSeconds = 150;

// Ends the process when it is not gone in time.
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
Result<std::unique_ptr<Communicator>> make_connected(const MakeGpuGroup& make_group,
                                                     World& world,
                                                     std::span<const int> world_ranks,
                                                     const std::string& name,
                                                     int device_index) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm, make_group(world, world_ranks, name, device_index));
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> hosts,
                   world.make_communicator(world_ranks, name + " connected"));
  int32_t here = 1;
  device::CpuStream stream({.name = "connected"});
  hosts->all_reduce(Tensor::contiguous(&here, DType::kI32, {1}), ReduceOp::kSum, stream);
  RETURN_IF_ERROR(stream.synchronize(Deadline::after_seconds(kMeetSeconds)));
  return comm;
}

}  // namespace

void run_on_gpu(const kernels::CudaModule& module,
                World& world,
                int device_index,
                const SiteTraits& traits,
                const MakeGpuGroup& make_group,
                const RankBody& body) {
  auto backend = module.make_backend(device_index);
  ASSERT_TRUE(backend.ok()) << backend.status().to_string();
  Site site(std::move(backend).value(),
            traits,
            [&](World& of, std::span<const int> ranks, const std::string& name, Duration) {
              return make_connected(make_group, of, ranks, name, device_index);
            });
  ASSERT_TRUE(world.barrier(Deadline::after_seconds(kMeetSeconds)).ok());
  body(world, site);
  EXPECT_TRUE(world.barrier(Deadline::after_seconds(kMeetSeconds)).ok());
  site.let_go();
  EXPECT_TRUE(world.barrier(Deadline::after_seconds(kMeetSeconds)).ok());
}

void run_on_gpus(const kernels::CudaModule& module,
                 int size,
                 const SiteTraits& traits,
                 const MakeGpuGroup& make_group,
                 const RankBody& body) {
  Watchdog watchdog(testing::UnitTest::GetInstance()->current_test_info()->name());
  ThreadWorld threads(size, {.collective_timeout = std::chrono::seconds(30)});
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      std::unique_ptr<World> world = threads.join(rank);
      run_on_gpu(module, *world, ranks_share_gpu() ? 0 : rank, traits, make_group, body);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

int run_gpu_tests(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  prepare_for_waiting_ranks();
  auto module = cuda_module();
  if (!module.ok()) {
    std::fprintf(stderr, "%s\n", module.status().to_string().c_str());
    return 1;
  }
  int gpus = (*module)->visible_devices();
  if (gpus >= 2 || (gpus == 1 && ranks_share_gpu())) return RUN_ALL_TESTS();
  std::printf("skipped: %d GPUs are visible, a group wants two\n", gpus);
  return kSkipped;
}

}  // namespace llm_dist::comm
