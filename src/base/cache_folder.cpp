#include "src/base/cache_folder.h"

#include <cstdlib>

namespace llm_dist {

std::string user_cache_folder() {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') return cache;
  const char* home = std::getenv("HOME");
  return home == nullptr || *home == '\0' ? std::string() : std::string(home) + "/.cache";
}

}  // namespace llm_dist
