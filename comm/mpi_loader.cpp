#include "comm/mpi_loader.h"

#include "comm/message_world.h"
#include "comm/mpi/mpi_module.h"
#include "src/base/run_time_module.h"

namespace llm_dist::comm {
namespace {

Result<const MpiModule*> open_mpi_module() {
  ASSIGN_OR_RETURN(
      void* entry,
      open_module(
          {.file = "libllm_dist_mpi.so",
           .entry = kMpiModuleEntry,
           .how_to_build = "build with MPI installed (Debian and Ubuntu: libopenmpi-dev)",
           .how_to_install = "install Open MPI (Debian and Ubuntu: apt-get install openmpi-bin libopenmpi3)",
           // MPI opens parts of its own that look for its symbols there.
           .global_symbols = true}));
  const MpiModule* module = reinterpret_cast<MpiModuleEntry>(entry)();
  if (module == nullptr || module->version != kMpiModuleVersion)
    return failed_precondition("the MPI module belongs to another build of llm-dist");
  return module;
}

}  // namespace

Result<std::string> mpi_library_version() {
  ASSIGN_OR_RETURN(const MpiModule* module, open_mpi_module());
  std::string text = module->library_version();
  return text.substr(0, text.find_first_of(",\n"));
}

Result<std::unique_ptr<World>> make_mpi_world(const RankInfo& info, const WorldOptions& options) {
  std::string need = format("{} ranks ({}) need MPI", info.size, info.source);
  Deadline deadline = Deadline::after(options.setup_timeout);
  auto module = open_mpi_module();
  if (!module.ok()) return module.status().with_context(need);
  auto transport = (*module)->start(deadline);
  if (!transport.ok()) return transport.status().with_context("starting MPI");
  return make_message_world(std::move(transport).value(), "mpi", info, options);
}

}  // namespace llm_dist::comm
