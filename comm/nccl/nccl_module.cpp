#include "comm/nccl/nccl_module.h"

#include <nccl.h>

#include "comm/nccl/cuda_host_gate.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/p2p/peer_memory.h"
#include "kernels/cuda/device/overlapped_launch.h"

namespace llm_dist::comm {
namespace {

Result<std::string> make_id() {
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  if (result != ncclSuccess) return internal_error(format("ncclGetUniqueId: {}", ncclGetErrorString(result)));
  return std::string(id.internal, sizeof id.internal);
}

void allow_early_starts(bool allowed) { kernels::early_starts_allowed = allowed; }
void allow_stream_waits(bool allowed) { stream_waits_allowed = allowed; }

constexpr NcclModule kModule{.version = kNcclModuleVersion,
                             .make_id = make_id,
                             .connect = NcclCommunicator::connect,
                             .make_host_gate = CudaHostGate::make,
                             .make_peer_memory = make_peer_memory,
                             .allow_early_starts = allow_early_starts,
                             .allow_stream_waits = allow_stream_waits};

}  // namespace
}  // namespace llm_dist::comm

extern "C" __attribute__((visibility("default"))) const llm_dist::comm::NcclModule* llm_dist_nccl_module() {
  return &llm_dist::comm::kModule;
}
