#include "launch/device_choice.h"

#include "comm/nccl_groups.h"
#include "comm/nccl_loader.h"
#include "comm/p2p_groups.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/cuda_module.h"
#include "launch/memory_ceiling.h"
#include "src/base/log.h"
#include "src/base/run_time_module.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::launch {
namespace {

Result<const kernels::CudaModule*> open_cuda_module() {
  // Before the driver is there. In fewer queues a stream may stand behind another that waits for a peer.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  ASSIGN_OR_RETURN(
      void* entry,
      open_module({.file = kernels::kCudaModuleFile,
                   .entry = kernels::kCudaModuleEntry,
                   .how_to_build = "build with a CUDA toolkit installed (LLM_DIST_CUDA)",
                   .how_to_install = "install the CUDA runtime and cuBLAS",
                   .driver = "libcuda.so.1",
                   .how_to_get_driver = "this host has no NVIDIA driver, or hides it from the process"}));
  const kernels::CudaModule* module = reinterpret_cast<kernels::CudaModuleEntry>(entry)();
  if (module == nullptr || module->version != kernels::kCudaModuleVersion)
    return failed_precondition("the CUDA module belongs to another build of llm-dist");
  return module;
}

// Of the visible ones.
Result<int> number_of_gpu(const kernels::CudaModule& module, const comm::World& world) {
  const int visible = module.visible_devices();
  if (visible == 0) return failed_precondition("no GPU is visible to this process (is there a driver?)");
  const comm::HostInfo& host = world.hosts()[static_cast<size_t>(world.rank_info().rank)];
  int index = visible == 1 ? 0 : host.local_rank;
  if (index >= visible) {
    return failed_precondition(
        format("{} ranks on {} and {} visible GPUs: start as many ranks as there are GPUs",
               host.local_size,
               host.hostname,
               visible));
  }
  return index;
}

Result<RankDevice> choose_gpu(const EngineFlags& flags, const comm::World& world) {
  ASSIGN_OR_RETURN(const kernels::CudaModule* module, open_cuda_module());
  ASSIGN_OR_RETURN(const int index, number_of_gpu(*module, world));
  RankDevice device;
  ASSIGN_OR_RETURN(device.backend, module->make_backend(index));
  device.device = device.backend->device();
  device.ops = module->ops;
  device.read_bandwidth = [module](device::Backend& backend, int, int64_t) {
    return module->read_bandwidth(backend);
  };
  device.custom_all_reduce = !flags.parallel.disable_custom_all_reduce;
  device.custom_hand_off = !flags.parallel.disable_custom_hand_off;
  device.stream_waits = !flags.parallel.disable_stream_waits;
  device.early_starts = !flags.scheduler.disable_pdl;
  if (!device.early_starts) module->allow_early_starts(false);
  return device;
}

}  // namespace

Result<int> visible_gpus() {
  ASSIGN_OR_RETURN(const kernels::CudaModule* module, open_cuda_module());
  return module->visible_devices();
}

Status try_gpu(const comm::World& world) {
  ASSIGN_OR_RETURN(const kernels::CudaModule* module, open_cuda_module());
  ASSIGN_OR_RETURN(const int index, number_of_gpu(*module, world));
  return module->make_backend(index).status();
}

Result<RankDevice> choose_device(const EngineFlags& flags, const comm::World& world, int cpu_threads) {
  const std::string& wanted = flags.model.device;
  if (wanted != "cpu") {
    Result<RankDevice> gpu = choose_gpu(flags, world);
    if (gpu.ok() || wanted == "cuda") return gpu;
    // A host without GPUs is nothing to tell; one whose GPUs are not used is.
    const Result<int> visible = visible_gpus();
    const LogLevel level = visible.ok() && *visible > 0 ? LogLevel::kWarning : LogLevel::kDebug;
    if (log_enabled(level)) log_line(level, format("running on the CPU: {}", gpu.status().message()));
  }
  RankDevice cpu;
  cpu.ops = &kernels::cpu_ops();
  cpu.read_bandwidth = [](device::Backend&, int threads, int64_t bytes) -> Result<double> {
    return measured_read_bandwidth(threads, bytes);
  };
  cpu.backend = device::make_cpu_backend({.threads = cpu_threads});
  return cpu;
}

Status add_device_resources(const RankDevice& device, RankResources& resources) {
  if (device.device.type == DeviceType::kCpu) return ok_status();
  ASSIGN_OR_RETURN(device::MemoryInfo memory, device.backend->memory_info());
  resources.memory_bytes = memory.free_bytes;
  resources.total_memory_bytes = memory.total_bytes;
  resources.default_kv_bytes = 0;
  resources.own_device = true;
  resources.bf16_arithmetic = true;
  resources.prefers_graphs = device.backend->prefers_graphs();
  resources.peer_memory = device.custom_all_reduce;
  resources.peer_hand_off = device.custom_hand_off;
  resources.quantized_activations = DType::kBF16;
  return ok_status();
}

Result<std::unique_ptr<comm::Communicator>> make_device_communicator(comm::World& world,
                                                                     const RankDevice& device,
                                                                     std::span<const int> world_ranks,
                                                                     const std::string& name,
                                                                     const comm::GroupUse& use) {
  if (device.device.type == DeviceType::kCuda) {
    const int index = device.device.index;
    if (world_ranks.size() > 1) {
      ASSIGN_OR_RETURN(const comm::NcclModule* module, comm::open_nccl_module());
      module->allow_early_starts(device.early_starts);
      module->allow_stream_waits(device.stream_waits);
    }
    if (!(use.hands_off ? device.custom_hand_off : device.custom_all_reduce))
      return comm::make_nccl_communicator(world, world_ranks, name, index, use);
    return comm::make_p2p_communicator(world,
                                       world_ranks,
                                       name,
                                       index,
                                       comm::default_peer_limits(static_cast<int>(world_ranks.size()), use));
  }
  return world.make_communicator(world_ranks, name);
}

}  // namespace llm_dist::launch
