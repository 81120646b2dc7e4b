#include "comm/mapped_files.h"

#include <algorithm>
#include <fstream>

namespace llm_dist::comm {

std::vector<std::string> mapped_files(std::string_view prefix) {
  constexpr std::string_view kDeleted = " (deleted)";
  std::vector<std::string> found;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    size_t at = line.find('/');
    if (at == std::string::npos) continue;
    std::string_view path = std::string_view(line).substr(at);
    if (!path.starts_with(prefix) || path.ends_with(kDeleted)) continue;
    if (std::find(found.begin(), found.end(), path) == found.end()) found.emplace_back(path);
  }
  return found;
}

}  // namespace llm_dist::comm
