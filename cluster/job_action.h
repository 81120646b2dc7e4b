// What may be wished of a job that exists.
#pragma once

#include <optional>
#include <string>

#include "cluster/store/command.h"

namespace llm_dist::cluster {

enum class JobAction : uint8_t { kCancel, kSuspend, kResume };

// The change that the action means for a job as it is; nothing when it is so already. failed_precondition:
// too late.
Result<std::optional<ChangeJob>> change_for(JobAction action, const Job& job, const std::string& reason);

}  // namespace llm_dist::cluster
