#include "cluster/world_folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "src/base/format.h"
#include "src/base/log.h"
#include "src/http/digest.h"

namespace llm_dist::cluster {
namespace {

// Memory, not a disk: ranks exchange tensors through these files.
constexpr const char* kPrefix = "/dev/shm/llm-dist-world-";
constexpr int kNameBytes = 8;

std::string link_of(const std::string& attempt_folder) { return attempt_folder + "/world"; }

}  // namespace

Result<std::string> make_world_folder(const std::string& attempt_folder) {
  std::string folder = kPrefix + http::random_hex(kNameBytes);
  if (::symlink(folder.c_str(), link_of(attempt_folder).c_str()) != 0) {
    return failed_precondition(format("{}: {}", link_of(attempt_folder), strerror(errno)));
  }
  if (::mkdir(folder.c_str(), S_IRWXU) == 0) return folder;
  Status failed = failed_precondition(format("{}: {}", folder, strerror(errno)));
  ::unlink(link_of(attempt_folder).c_str());
  return failed;
}

void remove_world_folder(const std::string& attempt_folder) {
  std::error_code error;
  std::string folder = std::filesystem::read_symlink(link_of(attempt_folder), error);
  if (error || !folder.starts_with(kPrefix)) return;
  std::filesystem::remove_all(folder, error);
  if (error) return log_warning("{} cannot be removed: {}", folder, error.message());
  ::unlink(link_of(attempt_folder).c_str());
}

std::vector<std::pair<std::string, std::string>> world_folder_variables(const std::string& world_folder) {
  return {{"OMPI_MCA_btl_vader_backing_directory", world_folder},  // segments of ranks: Open MPI 4,
          {"OMPI_MCA_btl_sm_backing_directory", world_folder},     // Open MPI 5
          {"OMPI_MCA_orte_tmpdir_base", world_folder},             // sessions of mpirun: Open MPI 4,
          {"PRTE_MCA_prte_tmpdir_base", world_folder}};            // Open MPI 5
}

}  // namespace llm_dist::cluster
