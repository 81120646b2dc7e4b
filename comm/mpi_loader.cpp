#include "comm/mpi_loader.h"

#include <dlfcn.h>

#include <filesystem>

#include "comm/message_world.h"
#include "comm/mpi/mpi_module.h"

namespace llm_dist::comm {
namespace {

constexpr const char* kModuleFile = "libllm_dist_mpi.so";
constexpr int kLevelsUp = 4;

Result<std::string> find_module() {
  std::error_code error;
  std::string executable = std::filesystem::read_symlink("/proc/self/exe", error).string();
  std::string searched;
  for (const std::string& folder : module_folders(executable, read_environment())) {
    std::string path = folder + "/" + kModuleFile;
    if (std::filesystem::exists(path, error)) return path;
    searched += format("{}{}", searched.empty() ? "" : ", ", folder);
  }
  return failed_precondition(
      format("{} is not in {}: build with MPI installed (Debian and Ubuntu: libopenmpi-dev), or set "
             "LLM_DIST_MODULE_DIR",
             kModuleFile,
             searched));
}

Result<const MpiModule*> open_module(const std::string& path) {
  // Global: MPI opens parts of its own that look for its symbols there. Never closed: MPI does not survive
  // it.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr) {
    std::string why = dlerror();
    // The module itself is there, so a missing file is libmpi.
    if (why.find("No such file") != std::string::npos)
      why += ": install Open MPI (Debian and Ubuntu: apt-get install openmpi-bin libopenmpi3)";
    return failed_precondition(why);
  }
  auto entry = reinterpret_cast<MpiModuleEntry>(dlsym(handle, kMpiModuleEntry));
  const MpiModule* module = entry == nullptr ? nullptr : entry();
  if (module == nullptr || module->version != kMpiModuleVersion)
    return failed_precondition(format("{} belongs to another build of llm-dist", path));
  return module;
}

}  // namespace

std::vector<std::string> module_folders(const std::string& executable, const Environment& environment) {
  auto set = environment.find("LLM_DIST_MODULE_DIR");
  if (set != environment.end()) return {set->second};
  std::vector<std::string> folders;
  std::filesystem::path folder = std::filesystem::path(executable).parent_path();
  for (int level = 0; level <= kLevelsUp && folder.has_relative_path();
       ++level, folder = folder.parent_path())
    folders.push_back((folder / "lib" / "llm-dist").string());
  return folders;
}

Result<std::unique_ptr<World>> make_mpi_world(const RankInfo& info, const WorldOptions& options) {
  std::string need = format("{} ranks ({}) need MPI", info.size, info.source);
  Deadline deadline = Deadline::after(options.setup_timeout);
  auto path = find_module();
  if (!path.ok()) return path.status().with_context(need);
  auto module = open_module(*path);
  if (!module.ok()) return module.status().with_context(need);
  auto transport = (*module)->start(deadline);
  if (!transport.ok()) return transport.status().with_context("starting MPI");
  return make_message_world(std::move(transport).value(), "mpi", info, options);
}

}  // namespace llm_dist::comm
