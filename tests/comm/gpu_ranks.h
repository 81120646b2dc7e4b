// Ranks on the GPUs of this machine, as threads of this process or as a launcher's processes, for the tests
// of communicators between GPUs.
#pragma once

#include <functional>

#include "tests/comm/conformance.h"
#include "tests/comm/site.h"
#include "tests/comm/waiting_ranks.h"
#include "tests/device/cuda_module.h"

namespace llm_dist::comm {

// Of a test that has no GPUs to run on.
inline constexpr int kSkipped = 77;

// A communicator of GPUs, made by the function under test.
using MakeGpuGroup = std::function<Result<std::unique_ptr<Communicator>>(
    World& world, std::span<const int> world_ranks, const std::string& name, int device_index)>;

using RankBody = std::function<void(World& world, Site& site)>;

// Runs `body` as one rank, with GPU `device_index`. Barriers keep what starts and ends a rank apart from the
// others' operations.
void run_on_gpu(const kernels::CudaModule& module,
                World& world,
                int device_index,
                const SiteTraits& traits,
                const MakeGpuGroup& make_group,
                const RankBody& body);

// Runs `body` as `size` ranks in threads, each with the GPU of its number, unless they share one. Ends the
// process when that takes minutes: nothing else ends a thread that hangs in a driver's call.
void run_on_gpus(const kernels::CudaModule& module,
                 int size,
                 const SiteTraits& traits,
                 const MakeGpuGroup& make_group,
                 const RankBody& body);

// Runs all tests, or says that there are fewer than two GPUs and that ranks do not share one.
int run_gpu_tests(int argc, char** argv);

}  // namespace llm_dist::comm
