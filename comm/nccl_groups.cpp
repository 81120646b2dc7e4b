#include "comm/nccl_groups.h"

#include "comm/nccl_loader.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::comm {
namespace {

constexpr size_t kIdBytes = 128;

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
