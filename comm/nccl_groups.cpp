#include "comm/nccl_groups.h"

#include <cstdlib>

#include "comm/nccl/nccl_module.h"
#include "src/base/run_time_module.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::comm {
namespace {

constexpr size_t kIdBytes = 128;

Result<const NcclModule*> open_nccl_module() {
  // Multicast over NVLink needs a healthy fabric manager on every host, and where that is missing it can take
  // GPUs out of service: whoever wants it says so.
  setenv("NCCL_NVLS_ENABLE", "0", 0);
  // A group is used on one stream at a time, in graphs or not: what keeps uses that overlap apart is not
  // needed.
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
  // Every algorithm connects when a group is made, not when it is first used: no call waits for a peer then.
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);
  ASSIGN_OR_RETURN(void* entry,
                   open_module({.file = kNcclModuleFile,
                                .entry = kNcclModuleEntry,
                                .how_to_build = "build with CUDA and NCCL installed (LLM_DIST_NCCL_ROOT)",
                                .how_to_install = "install NCCL 2 and the CUDA runtime"}));
  const NcclModule* module = reinterpret_cast<NcclModuleEntry>(entry)();
  if (module == nullptr || module->version != kNcclModuleVersion)
    return failed_precondition("the NCCL module belongs to another build of llm-dist");
  return module;
}

// The first rank's id on every rank of `group`, by a broadcast between hosts.
Result<std::string> share_id(Communicator& group, const NcclModule& module, Deadline deadline) {
  std::string id(kIdBytes, '\0');
  if (group.info().rank == 0) {
    ASSIGN_OR_RETURN(id, module.make_id());
    CHECK_EQ(id.size(), kIdBytes);
  }
  std::unique_ptr<device::Backend> host = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> stream = host->make_stream("nccl-id");
  Tensor words = Tensor::contiguous(id.data(), DType::kI32, {static_cast<int64_t>(kIdBytes / 4)});
  group.broadcast(words, 0, *stream);
  RETURN_IF_ERROR(stream->synchronize(deadline));
  return id;
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_nccl_communicator(World& world,
                                                             std::span<const int> world_ranks,
                                                             const std::string& name,
                                                             int device_index) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> hosts, world.make_communicator(world_ranks, name));
  if (world_ranks.size() == 1) return hosts;
  Deadline deadline = Deadline::after(world.options().setup_timeout);
  ASSIGN_OR_RETURN(const NcclModule* module, open_nccl_module());
  ASSIGN_OR_RETURN(std::string id, share_id(*hosts, *module, deadline));
  NcclGroup group{.info = hosts->info(), .device_index = device_index, .id = std::move(id)};
  group.info.backend = "nccl";
  return module->connect(group, deadline);
}

}  // namespace llm_dist::comm
