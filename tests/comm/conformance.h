// What every communicator backend must do. A case runs on every rank of a world at once: as a thread, or as a
// process.
#pragma once

#include <span>
#include <string>

#include "comm/world.h"

namespace llm_dist::comm {

struct ConformanceCase {
  const char* name;
  void (*run)(World& world);
};

std::span<const ConformanceCase> conformance_cases();

inline std::string case_name(const ConformanceCase& conformance_case) { return conformance_case.name; }

}  // namespace llm_dist::comm
