// What every communicator backend must do. A case runs on every rank of a world at once: as a thread, or as a
// process; on any device.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tests/comm/site.h"

namespace llm_dist::comm {

struct ConformanceCase {
  const char* name;
  void (*run)(World& world, Site& site);
  // The trait without which there is nothing to try; null: every site does it.
  bool SiteTraits::* needs = nullptr;
};

// Those that sites like this run.
std::vector<ConformanceCase> conformance_cases(const SiteTraits& traits = {});
// The part of them, for any site, that tries groups against each other, groups that end, and the world.
std::span<const ConformanceCase> world_cases();

inline std::string case_name(const ConformanceCase& conformance_case) { return conformance_case.name; }

}  // namespace llm_dist::comm
