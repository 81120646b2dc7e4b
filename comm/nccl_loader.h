// Opens the NCCL module at run time, so that llm-dist itself runs where libnccl is not installed.
#pragma once

#include "comm/nccl/nccl_module.h"

namespace llm_dist::comm {

// failed_precondition when the module or libnccl is missing, saying what to install.
Result<const NcclModule*> open_nccl_module();

}  // namespace llm_dist::comm
