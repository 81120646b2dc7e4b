#include "launch/config_entries.h"

namespace llm_dist::launch {

Status config_mistake(const std::string& path, int line, const std::string& what) {
  return invalid_argument(format("--config {}:{}: {}", path, line, what));
}

}  // namespace llm_dist::launch
