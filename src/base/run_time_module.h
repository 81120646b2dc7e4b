// Run-time modules: shared objects that llm-dist opens when it needs them, so that it runs where the
// libraries they need are not installed.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist {

// Where modules may lie, best first: `module_dir` alone when it is not empty; otherwise lib/llm-dist beside
// the executable and beside each folder above it, up to four levels (installed: bin/../lib/llm-dist; built:
// build/x/launch/../lib/llm-dist).
std::vector<std::string> module_folders(const std::string& executable, const std::string& module_dir);

struct ModuleRequest {
  const char* file = nullptr;   // "libllm_dist_mpi.so"
  const char* entry = nullptr;  // a function that takes nothing and returns the module's table
  // What to do when the module's file is missing: "build with MPI installed".
  const char* how_to_build = nullptr;
  // What to do when a library that it needs is missing: "install Open MPI".
  const char* how_to_install = nullptr;
  // A library without which the module is of no use, and what to do when it is missing. It is looked for
  // first: opening a module may cost a hundred megabytes.
  const char* driver = nullptr;
  const char* how_to_get_driver = nullptr;
  // Libraries that open parts of their own may look for their symbols among the global ones.
  bool global_symbols = false;
};

// Looks in module_folders() of this executable and LLM_DIST_MODULE_DIR, and opens the module; it is never
// closed. Returns its entry function. failed_precondition says what is missing and what to do.
Result<void*> open_module(const ModuleRequest& request);

}  // namespace llm_dist
