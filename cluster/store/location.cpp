#include "cluster/store/location.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "src/base/format.h"

namespace llm_dist::cluster {
namespace {

struct SharedFileSystem {
  uint64_t type;
  const char* name;
};
// statfs(2), and the magic numbers that each system's own header gives.
constexpr SharedFileSystem kShared[] = {
    {0x6969, "NFS"},
    {0x517B, "SMB"},
    {0xFF534D42, "CIFS"},
    {0xFE534D42, "SMB2"},
    {0x0BD00BD0, "Lustre"},
    {0x47504653, "GPFS"},
    {0x00C36400, "Ceph"},
    {0x5346414F, "AFS"},
    {0x6B414653, "kAFS"},
    {0x73757245, "Coda"},
    {0x01161970, "GFS2"},
    {0x7461636F, "OCFS2"},
    {0x19830326, "BeeGFS"},
    {0x20030528, "PVFS2"},
    {0x01021997, "9P"},
    {0x65735546, "FUSE"},
    {0xAAD7AAEA, "Panasas"},
    {0x786F4256, "vboxsf"},
};

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

}  // namespace

std::string default_store_path() {
  const std::string file = "/llm-dist/coordinator.db";
  if (std::string state = environment("XDG_STATE_HOME"); state.starts_with('/')) return state + file;
  if (std::string home = environment("HOME"); home.starts_with('/')) return home + "/.local/state" + file;
  return "/var/lib" + file;
}

Result<std::string> canonical_store_path(const std::string& path) {
  if (path.empty()) return invalid_argument("--store: a file's name is needed");
  std::error_code error;
  std::filesystem::path canonical = std::filesystem::absolute(path, error);
  if (!error) canonical = std::filesystem::weakly_canonical(canonical, error);
  if (error) return invalid_argument(format("--store {}: {}", path, error.message()));
  return canonical.string();
}

std::string network_file_system(uint64_t type) {
  for (const SharedFileSystem& shared : kShared) {
    if ((type & 0xFFFFFFFF) == shared.type) return shared.name;
  }
  return "";
}

Status check_store_location(const std::string& path) {
  std::string folder = folder_of(path);
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) {
    std::filesystem::create_directories(folder, error);
    if (error)
      return failed_precondition(format("cannot make the store's folder {}: {}", folder, error.message()));
    chmod(folder.c_str(), S_IRWXU);
  }
  struct statfs about{};
  if (statfs(folder.c_str(), &about) != 0) {
    return failed_precondition(format("cannot look at the store's folder {}: {}", folder, strerror(errno)));
  }
  std::string shared = network_file_system(static_cast<uint64_t>(about.f_type));
  if (shared.empty()) return ok_status();
  return failed_precondition(format(
      "{} is on {}, where a store could be damaged: name a file on a local disk with --store", path, shared));
}

Result<std::unique_ptr<StoreLock>> StoreLock::take(const std::string& path) {
  std::string name = path + ".lock";
  int file = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return failed_precondition(format("{}: {}", name, strerror(errno)));
  struct flock whole{};
  whole.l_type = F_WRLCK;
  if (fcntl(file, F_OFD_SETLK, &whole) != 0) {
    ::close(file);
    return failed_precondition(format("another coordinator uses the store {}", path));
  }
  return std::unique_ptr<StoreLock>(new StoreLock(file));
}
StoreLock::~StoreLock() { ::close(file_); }

bool StoreLock::is_held(const std::string& path) {
  int file = ::open((path + ".lock").c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return false;
  struct flock whole{};
  whole.l_type = F_WRLCK;
  bool asked = fcntl(file, F_OFD_GETLK, &whole) == 0;
  ::close(file);
  return asked && whole.l_type != F_UNLCK;
}

}  // namespace llm_dist::cluster
