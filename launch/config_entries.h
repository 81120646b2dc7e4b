// What a file of flags says, in either of its formats.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"

namespace llm_dist::launch {

struct ConfigEntry {
  std::vector<std::string> section;  // "bench", "latency"; empty in front of any section
  std::string key;                   // empty: the section itself, which may hold nothing
  std::vector<std::string> values;   // as they are typed behind a flag; several of a list
  int line = 0;                      // from 1
};

// In the file's order. Each fails with config_mistake.
Result<std::vector<ConfigEntry>> toml_entries(const std::string& path, const std::string& text);
// Lines `key = value`, `[section]` and, beginning with ; or #, comments. A value goes to the end of its line,
// less a pair of quotes around it; there are no lists.
Result<std::vector<ConfigEntry>> ini_entries(const std::string& path, const std::string& text);

// invalid_argument, "--config FILE:LINE: what".
Status config_mistake(const std::string& path, int line, const std::string& what);

}  // namespace llm_dist::launch
