// Which of Highway's instruction sets this process takes.
#pragma once

#include <hwy/targets.h>

#include <cstdint>

namespace llm_dist {

// Targets that this CPU lacks are not taken; 0: all that it has.
inline void use_highway_targets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace llm_dist
