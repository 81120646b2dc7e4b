#include "comm/nccl_loader.h"

#include <cstdlib>

#include "src/base/run_time_module.h"

namespace llm_dist::comm {

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

}  // namespace llm_dist::comm
