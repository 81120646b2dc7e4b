// The NCCL module's one entry point: collectives between GPUs, the library's and those over peer memory,
// which have no use without it. The module is the only thing that needs libnccl; it is built together with
// llm-dist, and the version catches a stale one.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/host_gate.h"
#include "comm/p2p/peer_group.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

constexpr int kNcclModuleVersion = 7;
constexpr const char* kNcclModuleFile = "libllm_dist_nccl.so";
constexpr const char* kNcclModuleEntry = "llm_dist_nccl_module";

struct NcclGroup {
  CommInfo info;
  int device_index = 0;
  std::string id;  // what make_id() gave the group's first rank
};

struct NcclModule {
  int version = 0;
  Result<std::string> (*make_id)() = nullptr;
  // Every rank of the group calls it with the same id; waits for them until the deadline.
  Result<std::unique_ptr<Communicator>> (*connect)(const NcclGroup& group, Deadline deadline) = nullptr;
  // failed_precondition where streams cannot wait.
  Result<std::unique_ptr<HostGate>> (*make_host_gate)(int device_index) = nullptr;
  std::unique_ptr<PeerMemory> (*make_peer_memory)(const PeerGroup& group) = nullptr;
  // As of CudaModule, of kernels over peer memory.
  void (*allow_early_starts)(bool allowed) = nullptr;
  // Whether streams wait for messages, of groups that are made then; otherwise kernels do.
  void (*allow_stream_waits)(bool allowed) = nullptr;
};

using NcclModuleEntry = const NcclModule* (*)();

}  // namespace llm_dist::comm
