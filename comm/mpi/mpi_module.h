// The module's one entry point. The module is the only thing that needs libmpi; it is built together with
// llm-dist, and the version catches a stale one.
#pragma once

#include <memory>
#include <string>

#include "comm/message_transport.h"
#include "src/base/clock.h"

namespace llm_dist::comm {

constexpr int kMpiModuleVersion = 3;
constexpr const char* kMpiModuleEntry = "llm_dist_mpi_module";

struct MpiModule {
  int version = 0;
  // What the MPI library says of itself, without being initialised.
  std::string (*library_version)() = nullptr;
  // Initialises MPI; once a process. Blocks as long as MPI_Init does; the rest keeps to the deadline.
  Result<std::unique_ptr<MessageTransport>> (*start)(Deadline deadline) = nullptr;
};

using MpiModuleEntry = const MpiModule* (*)();

}  // namespace llm_dist::comm
