#include "src/base/run_time_module.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

namespace llm_dist {
namespace {

constexpr int kLevelsUp = 4;

Result<std::string> find_module(const ModuleRequest& request) {
  std::error_code error;
  std::string executable = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const char* module_dir = std::getenv("LLM_DIST_MODULE_DIR");
  std::string searched;
  for (const std::string& folder : module_folders(executable, module_dir == nullptr ? "" : module_dir)) {
    std::string path = folder + "/" + request.file;
    if (std::filesystem::exists(path, error)) return path;
    searched += format("{}{}", searched.empty() ? "" : ", ", folder);
  }
  return failed_precondition(format(
      "{} is not in {}: {}, or set LLM_DIST_MODULE_DIR", request.file, searched, request.how_to_build));
}

}  // namespace

std::vector<std::string> module_folders(const std::string& executable, const std::string& module_dir) {
  if (!module_dir.empty()) return {module_dir};
  std::vector<std::string> folders;
  std::filesystem::path folder = std::filesystem::path(executable).parent_path();
  for (int level = 0; level <= kLevelsUp && folder.has_relative_path();
       ++level, folder = folder.parent_path())
    folders.push_back((folder / "lib" / "llm-dist").string());
  return folders;
}

Result<void*> open_module(const ModuleRequest& request) {
  ASSIGN_OR_RETURN(std::string path, find_module(request));
  if (request.driver != nullptr && dlopen(request.driver, RTLD_LAZY) == nullptr)
    return failed_precondition(format("{}: {}", dlerror(), request.how_to_get_driver));
  void* handle = dlopen(path.c_str(), RTLD_NOW | (request.global_symbols ? RTLD_GLOBAL : RTLD_LOCAL));
  if (handle == nullptr) {
    std::string why = dlerror();
    // The module itself is there, so a missing file is a library that it needs.
    if (why.find("No such file") != std::string::npos) why += format(": {}", request.how_to_install);
    return failed_precondition(why);
  }
  void* entry = dlsym(handle, request.entry);
  if (entry == nullptr) return failed_precondition(format("{} belongs to another build of llm-dist", path));
  return entry;
}

}  // namespace llm_dist
