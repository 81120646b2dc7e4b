#include "launch/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/base/format.h"

namespace llm_dist::launch {

Status write_whole_file(const std::string& path, const std::string& text) {
  std::string part = path + ".part";
  std::ofstream file(part);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(part, path, error);
  if (file && !error) return ok_status();
  std::error_code ignored;
  std::filesystem::remove(part, ignored);
  return unavailable(format("{}: {}", path, error ? error.message() : "cannot be written"));
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
