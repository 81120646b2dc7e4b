// A folder in shared memory for one attempt: what mpirun and the MPI library of its ranks keep in files is
// put there, so that it can be removed when they were killed before they could.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::cluster {

// Makes it, for this user alone. How it is found again is written to the attempt's folder first: a crash
// leaves nothing that is not known. failed_precondition: there is no shared memory, or the attempt has one
// already.
Result<std::string> make_world_folder(const std::string& attempt_folder);

// With everything in it; nothing happens where there is none, or no more.
void remove_world_folder(const std::string& attempt_folder);

// What makes mpirun and its ranks use it, as variables of their environment.
std::vector<std::pair<std::string, std::string>> world_folder_variables(const std::string& world_folder);

}  // namespace llm_dist::cluster
