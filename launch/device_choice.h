// Which device a rank runs on: its backend and the ops for it.
#pragma once

#include <functional>
#include <memory>

#include "comm/world.h"
#include "kernels/op_table.h"
#include "launch/flags.h"
#include "src/device/backend.h"

namespace llm_dist::launch {

struct RankDevice {
  Device device;
  const kernels::OpTable* ops = nullptr;
  std::unique_ptr<device::Backend> backend;
  // Bytes a second of device memory, measured. Of a CPU: by `threads` that read `bytes` again and again, as
  // decode steps do, so that its caches count as they do there.
  std::function<Result<double>(device::Backend& backend, int threads, int64_t bytes)> read_bandwidth;
  // Over peer memory where that is possible, by kernels of our own: sums and gathers between GPUs, and
  // hand-offs between stages.
  bool custom_all_reduce = true;
  bool custom_hand_off = true;
  bool early_starts = true;  // of kernels, before the ones in front have ended
  bool stream_waits = true;  // for hand-offs, and no kernel's
};

// --device is "cpu", "cuda" or "auto" (a GPU where the CUDA module opens and one is visible). A rank takes
// the visible GPU with its local rank's number; where the launcher shows each rank one GPU of its own, that
// one. `cpu_threads`: of the CPU's ops. failed_precondition when there is no GPU for this rank.
Result<RankDevice> choose_device(const EngineFlags& flags, const comm::World& world, int cpu_threads);

// How many GPUs this process sees; an error says why it cannot look.
Result<int> visible_gpus();

// Whether this rank's GPU can be used, and why not. Takes memory of it for a moment.
Status try_gpu(const comm::World& world);

// The device's part of what a rank can offer.
Status add_device_resources(const RankDevice& device, RankResources& resources);

// How this rank's groups on that device are made.
Result<std::unique_ptr<comm::Communicator>> make_device_communicator(comm::World& world,
                                                                     const RankDevice& device,
                                                                     std::span<const int> world_ranks,
                                                                     const std::string& name,
                                                                     const comm::GroupUse& use = {});

}  // namespace llm_dist::launch
