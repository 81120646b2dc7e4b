// Opens the MPI module at run time, so that llm-dist itself runs where libmpi is not installed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"

namespace llm_dist::comm {

// Where run-time modules may lie, best first: LLM_DIST_MODULE_DIR alone when set; otherwise lib/llm-dist
// beside the executable and beside each folder above it, up to four levels (installed: bin/../lib/llm-dist;
// built: build/x/launch/../lib/llm-dist).
std::vector<std::string> module_folders(const std::string& executable, const Environment& environment);

// failed_precondition when the module or libmpi is missing, saying what to install.
Result<std::unique_ptr<World>> make_mpi_world(const RankInfo& info, const WorldOptions& options);

}  // namespace llm_dist::comm
