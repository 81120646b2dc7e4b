// Opens the MPI module at run time, so that llm-dist itself runs where libmpi is not installed.
#pragma once

#include <memory>

#include "comm/world.h"

namespace llm_dist::comm {

// failed_precondition when the module or libmpi is missing, saying what to install.
Result<std::unique_ptr<World>> make_mpi_world(const RankInfo& info, const WorldOptions& options);

// "Open MPI v4.1.4": of the library that the module loads here. Errors as above.
Result<std::string> mpi_library_version();

}  // namespace llm_dist::comm
