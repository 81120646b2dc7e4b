#include "launch/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/base/format.h"

namespace llm_dist::launch {

Status write_whole_file(const std::string& named, const std::string& text) {
  std::error_code error;
  std::string path = named;
  if (std::filesystem::is_symlink(path, error))
    path = std::filesystem::weakly_canonical(path, error).string();
  // A device or a pipe stays what it is.
  const bool replaced =
      !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
  const std::string part = replaced ? path + ".part" : path;
  std::ofstream file(part);
  file << text;
  file.close();
  error.clear();
  if (file && replaced) std::filesystem::rename(part, path, error);
  if (file && !error) return ok_status();
  std::error_code ignored;
  if (replaced) std::filesystem::remove(part, ignored);
  return unavailable(format("{}: {}", named, error ? error.message() : "cannot be written"));
}

Status check_writable(const std::string& flag, const std::string& path) {
  if (path.empty()) return ok_status();
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return invalid_argument(format("{} {}: a folder, and no file", flag, path));
  std::filesystem::path place = path;
  if (!std::filesystem::exists(place, error)) place = place.has_parent_path() ? place.parent_path() : ".";
  if (access(place.c_str(), W_OK) == 0) return ok_status();
  return invalid_argument(format("{} {}: cannot be written: {}", flag, path, std::strerror(errno)));
}

}  // namespace llm_dist::launch
