#include "comm/nccl_groups.h"

#include <array>

#include "comm/announced_communicator.h"
#include "comm/nccl_loader.h"
#include "src/base/log.h"
#include "src/device/cpu/cpu_backend.h"

namespace llm_dist::comm {
namespace {

constexpr size_t kIdBytes = 128;

// Lets go of what was issued, one way or the other.
Status finish(Communicator& group, device::Stream& stream, Deadline deadline) {
  Status status = stream.synchronize(deadline);
  if (!status.ok()) group.abort(status);
  return status;
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
  RETURN_IF_ERROR(finish(group, *stream, deadline));
  return id;
}

Result<bool> all_say(Communicator& group, bool yes, Deadline deadline) {
  int32_t least = yes ? 1 : 0;
  std::unique_ptr<device::Backend> host = device::make_cpu_backend({});
  std::unique_ptr<device::Stream> stream = host->make_stream("agree");
  group.all_reduce(Tensor::contiguous(&least, DType::kI32, {1}), ReduceOp::kMin, *stream);
  RETURN_IF_ERROR(finish(group, *stream, deadline));
  return least == 1;
}

// Where both ranks' streams can wait for announcements; otherwise `messages`.
Result<std::unique_ptr<Communicator>> announce(std::unique_ptr<Communicator> messages,
                                               const NcclModule& module,
                                               World& world,
                                               std::span<const int> world_ranks,
                                               int device_index) {
  const std::string name = messages->info().name;
  std::array<std::unique_ptr<Communicator>, 2> hosts;
  for (size_t sender = 0; sender < hosts.size(); ++sender) {
    ASSIGN_OR_RETURN(
        hosts[sender],
        world.make_communicator(world_ranks, format("{}-announced-{}", name, sender), {.polls_often = true}));
  }
  Result<std::unique_ptr<HostGate>> gate = module.make_host_gate(device_index);
  ASSIGN_OR_RETURN(const bool both_can,
                   all_say(*hosts[0], gate.ok(), Deadline::after(world.options().setup_timeout)));
  if (!gate.ok() && gate.status().code() != StatusCode::kFailedPrecondition) return gate.status();
  if (!both_can) {
    log_info("group {}: receives wait in kernels", name);
    return messages;
  }
  return std::unique_ptr<Communicator>(std::make_unique<AnnouncedCommunicator>(
      std::move(messages), std::move(hosts), std::move(gate).value()));
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_nccl_communicator(World& world,
                                                             std::span<const int> world_ranks,
                                                             const std::string& name,
                                                             int device_index,
                                                             const GroupUse& use) {
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> hosts, world.make_communicator(world_ranks, name));
  if (world_ranks.size() == 1) return hosts;
  Deadline deadline = Deadline::after(world.options().setup_timeout);
  ASSIGN_OR_RETURN(const NcclModule* module, open_nccl_module());
  ASSIGN_OR_RETURN(std::string id, share_id(*hosts, *module, deadline));
  NcclGroup group{.info = hosts->info(), .device_index = device_index, .id = std::move(id)};
  group.info.backend = "nccl";
  ASSIGN_OR_RETURN(std::unique_ptr<Communicator> nccl, module->connect(group, deadline));
  if (!use.hands_off || world_ranks.size() != 2) return nccl;
  return announce(std::move(nccl), *module, world, world_ranks, device_index);
}

}  // namespace llm_dist::comm
