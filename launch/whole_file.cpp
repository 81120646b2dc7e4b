#include "launch/whole_file.h"

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

}  // namespace llm_dist::launch
